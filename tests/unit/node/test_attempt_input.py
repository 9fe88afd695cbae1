"""The end of an attempt's input while the agent's threads are busy."""

import asyncio
import os
import select
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple
from pathlib import Path

from gpuyard.domain import wire
from gpuyard.node.attempt_input import AttemptInput
from gpuyard.node.input_pipe import new_pipe
from gpuyard.node.journal import AttemptJournal


def test_an_input_that_was_ended_ends_though_the_one_who_did_it_has_gone(
    tmp_path: Path,
) -> None:
    async def end_and_go() -> bytes:
        busy = threading.Event()
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))
        working = asyncio.create_task(asyncio.to_thread(busy.wait))
        await asyncio.sleep(0)  # it has the only thread
        ending = asyncio.create_task(target.end())
        await target.ended.wait()
        ending.cancel()
        await asyncio.wait({ending})
        busy.set()
        await working
        await asyncio.to_thread(select.select, [program], [], [], 10)
        return os.read(program, 1)

    journal = AttemptJournal(tmp_path)
    start = wire.StartAttempt("a1", 1, 2, "job", ["cat"], {}, interactive=True)
    record = journal.intend(start, "boot")
    with new_pipe("a1", None) as (reader, holder):
        record.input_holder = astuple(holder)
        program = os.dup(reader)
        os.set_blocking(program, False)
        target = AttemptInput(record, journal)
        try:
            assert asyncio.run(end_and_go()) == b""
        finally:
            holder.dismiss()
            os.close(program)
