"""Output whose reader has gone, as in `gpuyard jobs | head`."""

import os
import sys


def discard_output() -> None:
    """Send what is still in the buffer of stdout to /dev/null.

    Otherwise Python would report the broken pipe again when it flushes at exit.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
