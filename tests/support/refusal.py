"""What a command that refuses leaves behind, and refusals that root needs help to
see.
"""

import ctypes
from typing import Any

from tests.support.instance import TestInstance

CAP_DAC_OVERRIDE = 1
CAP_DAC_READ_SEARCH = 2
PR_CAPBSET_DROP = 24


def refused(instance: TestInstance, *words: str, code: int, **more: Any) -> str:
    """The one error that `gpuyard WORDS` leaves on stderr; it says nothing on
    stdout.
    """
    done = instance.run(*words, **more)
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert done.stderr.startswith("gpuyard: "), done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr


def obey_modes() -> None:
    """In a process about to become another: root too may then read and write only what
    file modes allow.
    """
    libc = ctypes.CDLL(None)
    for capability in (CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH):
        libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
