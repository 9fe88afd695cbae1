"""The standard input that goes to an interactive job, where it is an unusual one."""

import os
import pty
import subprocess
import sys

READ = """
from gpuyard.cli.typed_input import StandardInput
# Where no input is open, this gets its descriptor.
other = open("/dev/urandom", "rb")
typed = StandardInput()
print(typed.until_typed(), typed.read())
"""


def test_a_command_without_a_standard_input_reads_nothing_else_in_its_place() -> None:
    without = ["sh", "-c", 'exec "$@" <&-', "sh", sys.executable, "-c", READ]
    done = subprocess.run(without, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("False b''\n", "")


def test_the_terminal_of_another_session_is_read() -> None:
    """As after `su -c`, which begins a session of its own."""
    master, inside = pty.openpty()
    os.write(master, b"typed\n")
    done = subprocess.run(
        [sys.executable, "-c", READ],
        stdin=inside,
        capture_output=True,
        text=True,
        start_new_session=True,
        timeout=60,
    )
    os.close(inside)
    os.close(master)
    assert (done.stdout, done.stderr) == ("True b'typed\\n'\n", "")
