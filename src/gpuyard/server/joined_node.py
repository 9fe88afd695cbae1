"""`python -m gpuyard.server.joined_node`: keeps the agent of a machine that has joined
an instance alive. No server runs here.

As a service (`--service`), agent and jobs outlive it. Otherwise the agent ends with it;
its jobs run on until the next agent adopts them.
"""

import argparse
import asyncio
import signal
import sys
from contextlib import suppress
from pathlib import Path

from gpuyard.config.joined import read_membership, refuse_copied_home
from gpuyard.config.logs import configure_logging
from gpuyard.config.paths import Home
from gpuyard.config.private_environment import protect
from gpuyard.controller.controller import keep_host_agent, stop_host_agent
from gpuyard.domain.errors import RefusedError


def main() -> None:
    """Run until asked to stop."""
    protect()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--home", type=Path)
    parser.add_argument("--service", action="store_true")
    arguments = parser.parse_args()
    home = Home(arguments.home.absolute()) if arguments.home else Home.find()
    membership = read_membership(home)
    if membership is None:
        sys.stderr.write(f"gpuyard: {home.root} has not joined any instance\n")
        sys.exit(RefusedError.exit_code)
    try:
        refuse_copied_home(home, membership)
    except RefusedError as error:
        sys.stderr.write(f"gpuyard: {error}\n")
        sys.exit(RefusedError.exit_code)
    configure_logging(home.logs / "node.log")
    home.create()
    asyncio.run(_keep(home))
    if not arguments.service:
        stop_host_agent(home)


async def _keep(home: Home) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    keeping = asyncio.create_task(keep_host_agent(home))
    await stopping.wait()
    keeping.cancel()
    with suppress(asyncio.CancelledError):
        await keeping


if __name__ == "__main__":
    main()
