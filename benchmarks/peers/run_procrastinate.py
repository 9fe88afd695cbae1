"""procrastinate on a PostgreSQL that syncs every commit, at PEER_DATABASE; one worker,
two jobs at once.
"""

import asyncio
import os
import time

import procrastinate
from common import SLOTS, open_ends, report, spawn, tell_end, wait_for_ends

app = procrastinate.App(
    connector=procrastinate.PsycopgConnector(conninfo=os.environ["PEER_DATABASE"])
)
ends = open_ends()


@app.task(name="noop")
def noop() -> None:
    """One no-op, in a thread of the worker."""
    spawn()
    tell_end(ends)


async def _done() -> int:
    query = "SELECT count(*) AS done FROM procrastinate_jobs WHERE status = 'succeeded'"
    return (await app.connector.execute_query_one_async(query))["done"]


async def main() -> None:
    """Queue all in one statement, as procrastinate's guide advises."""
    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        worker = asyncio.create_task(
            app.run_worker_async(concurrency=SLOTS, install_signal_handlers=False)
        )
        loop = asyncio.get_running_loop()
        done = 0

        async def work(count: int) -> None:
            nonlocal done
            await noop.batch_defer_async(*[{}] * count)
            done += count

        def queue_and_wait(count: int) -> None:
            asyncio.run_coroutine_threadsafe(work(count), loop).result()
            wait_for_ends(ends, count)
            while asyncio.run_coroutine_threadsafe(_done(), loop).result() < done:
                time.sleep(0.001)

        await asyncio.to_thread(report, queue_and_wait)
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(main())
