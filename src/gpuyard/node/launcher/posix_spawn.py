"""posix_spawn(3) with a working directory, which `os.posix_spawn` lacks.

The directory must change in the child: `os.chdir` would affect every thread of the
agent. A shell that does `cd` and `exec` costs 0.7 ms (as much as the whole spawn) and
changes the environment, and `fork` is unsafe in a program with threads. The C library
does it as a file action (glibc 2.29, musl 1.1.24), and reports a failed exec by its
errno.
"""

import ctypes
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

_SETSIGDEF = 0x04
_SETSIGMASK = 0x08
_SETSID = 0x80
# More than twice the size of posix_spawnattr_t, the largest of the opaque types in
# glibc and musl.
_OPAQUE_BYTES = 1024
_SIGSET_BYTES = 128

_libc = ctypes.CDLL(None)
# glibc 2.34 can close all descriptors from a number on.
_CAN_CLOSE = hasattr(_libc, "posix_spawn_file_actions_addclosefrom_np")


@dataclass(frozen=True, slots=True)
class Streams:
    """The agent's descriptors that become 0, 1 and 2 in the child, and 3 if `control`
    is given. Without `errors`, 2 is what 1 is.
    """

    stdin: int
    output: int
    control: int | None = None
    errors: int | None = None

    def numbers(self) -> set[int]:
        """All of them, each once."""
        given = (self.stdin, self.output, self.control, self.errors)
        return {number for number in given if number is not None}


def posix_spawn(
    path: bytes,
    argv: Sequence[bytes],
    environment: Sequence[bytes],
    directory: bytes,
    streams: Streams,
) -> int:
    """Start `path` as the leader of a new session in `directory`, with every signal at
    its default and none blocked.

    `environment` holds `NAME=value` entries. Returns the pid once the exec has
    happened. Raises OSError if the exec or the change of directory failed; then no
    process is left. No argument may hold a NUL byte.
    """
    actions = ctypes.create_string_buffer(_OPAQUE_BYTES)
    _check(_libc.posix_spawn_file_actions_init(actions))
    try:
        _add_actions(actions, directory, streams)
        pid = ctypes.c_int()
        _check(
            _libc.posix_spawn(
                ctypes.byref(pid),
                path,
                actions,
                _attributes(),
                _strings(argv),
                _strings(environment),
            ),
        )
        return pid.value
    finally:
        _libc.posix_spawn_file_actions_destroy(actions)


@cache
def _attributes() -> "ctypes.Array[ctypes.c_char]":
    """They are the same for all: made once, and only read from then on."""
    attributes = ctypes.create_string_buffer(_OPAQUE_BYTES)
    _check(_libc.posix_spawnattr_init(attributes))
    # Set the bits directly: sigfillset(3) leaves out 32 and 33, which glibc would then
    # leave ignored in the child.
    every = ctypes.create_string_buffer(b"\xff" * _SIGSET_BYTES)
    none = ctypes.create_string_buffer(_SIGSET_BYTES)
    _check(_libc.posix_spawnattr_setsigdefault(attributes, every))
    _check(_libc.posix_spawnattr_setsigmask(attributes, none))
    _check(
        _libc.posix_spawnattr_setflags(
            attributes, ctypes.c_short(_SETSID | _SETSIGDEF | _SETSIGMASK)
        )
    )
    return attributes


def _add_actions(
    actions: "ctypes.Array[ctypes.c_char]", directory: bytes, streams: Streams
) -> None:
    errors = 1 if streams.errors is None else streams.errors
    duplicates = [(streams.stdin, 0), (streams.output, 1), (errors, 2)]
    if streams.control is not None:
        duplicates.append((streams.control, 3))
    for source, target in duplicates:
        _check(_libc.posix_spawn_file_actions_adddup2(actions, source, target))
    # GPU libraries open devices without O_CLOEXEC, and a child must not inherit those
    # of the agent.
    if _CAN_CLOSE:
        _check(_libc.posix_spawn_file_actions_addclosefrom_np(actions, len(duplicates)))
    _check(_libc.posix_spawn_file_actions_addchdir_np(actions, directory))


def _strings(values: Sequence[bytes]) -> "ctypes.Array[ctypes.c_char_p]":
    return (ctypes.c_char_p * (len(values) + 1))(*values, None)


def _check(error: int) -> None:
    if error:
        raise OSError(error, os.strerror(error))
