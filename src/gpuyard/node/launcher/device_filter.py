"""Refuses the processes of a control group the devices that they must not open.

Version 2 has no files for this: a small program in the kernel (BPF) is asked at each
opening. It refuses what the rules name, and leaves all other devices to the modes of
their files. Version 1 takes the refused devices one by one, in `devices.deny`.

The rules name majors of GPUs only. A list of all that a job may open would be stricter,
but it would break programs by forgetting a device that they need.
"""

import ctypes
import os
import platform
import struct
from collections.abc import Iterable
from pathlib import Path

from gpuyard.devices.access import DeviceRule

_SYSCALLS = {"x86_64": 321, "aarch64": 280}
_BPF_PROG_LOAD = 5
_BPF_PROG_ATTACH = 8
_BPF_PROG_TYPE_CGROUP_DEVICE = 15
_BPF_CGROUP_DEVICE = 6
# So that programs of the groups above (systemd's, a container's) stay in force.
_BPF_F_ALLOW_MULTI = 2
_CHARACTER_DEVICE = 2
_ATTRIBUTES_BYTES = 72

# Instructions: their codes in the kernel's bpf.h.
_LOAD_WORD = 0x61
_AND = 0x57
_JUMP_UNLESS_EQUAL = 0x55
_JUMP_IF_EQUAL = 0x15
_SET = 0xB7
_EXIT = 0x95
_RESULT, _CONTEXT, _TYPE, _MAJOR, _MINOR = range(5)

_libc = ctypes.CDLL(None, use_errno=True)


def attach(group: Path, rules: Iterable[DeviceRule]) -> None:
    """Apply the rules to a group of version 2, until it is removed.

    Raises OSError if the kernel does not do that or this process may not ask for it.
    """
    program = _load(_assemble(rules))
    try:
        folder = os.open(group, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            attributes = struct.pack(
                "=IIII", folder, program, _BPF_CGROUP_DEVICE, _BPF_F_ALLOW_MULTI
            )
            _bpf(_BPF_PROG_ATTACH, attributes)
        finally:
            os.close(folder)
    finally:
        os.close(program)


def deny(group: Path, rules: Iterable[DeviceRule]) -> None:
    """Apply the rules to a group of the version 1 controller `devices`, for the devices
    that exist now. Raises OSError.
    """
    file = os.open(group / "devices.deny", os.O_WRONLY | os.O_CLOEXEC)
    try:
        for rule in rules:
            for minor in rule.denied:
                os.write(file, f"c {rule.major}:{minor} rwm".encode())
    finally:
        os.close(file)


def _assemble(rules: Iterable[DeviceRule]) -> bytes:
    """The program: its result is 1 to allow the opening, 0 to refuse it."""
    code = [
        _instruction(_LOAD_WORD, _TYPE, _CONTEXT, offset=0),
        # The upper half is what is wanted of the device: read, write or make.
        _instruction(_AND, _TYPE, value=0xFFFF),
        _instruction(_LOAD_WORD, _MAJOR, _CONTEXT, offset=4),
        _instruction(_LOAD_WORD, _MINOR, _CONTEXT, offset=8),
        _instruction(_JUMP_IF_EQUAL, _TYPE, value=_CHARACTER_DEVICE, offset=2),
        *_return(1),
    ]
    for rule in rules:
        code += _rule_code(rule)
    code += _return(1)
    return b"".join(code)


def _rule_code(rule: DeviceRule) -> list[bytes]:
    """Returns for its major; for any other, goes on after this code."""
    minors = sorted(rule.allowed)
    refuse = _return(0)
    # The kernel takes no code that is never reached.
    allow = _return(1) if minors else []
    checks: list[bytes] = []
    for position, minor in enumerate(minors):
        behind = len(minors) - position - 1
        to_allow = behind + len(refuse)
        checks.append(
            _instruction(_JUMP_IF_EQUAL, _MINOR, value=minor, offset=to_allow)
        )
    body = [*checks, *refuse, *allow]
    skip = _instruction(_JUMP_UNLESS_EQUAL, _MAJOR, value=rule.major, offset=len(body))
    return [skip, *body]


def _return(result: int) -> list[bytes]:
    return [_instruction(_SET, _RESULT, value=result), _instruction(_EXIT)]


def _instruction(
    code: int, target: int = 0, source: int = 0, *, offset: int = 0, value: int = 0
) -> bytes:
    return struct.pack("=BBhi", code, source << 4 | target, offset, value)


def _load(code: bytes) -> int:
    """A descriptor of the program in the kernel."""
    instructions = ctypes.create_string_buffer(code, len(code))
    license_text = ctypes.create_string_buffer(b"Apache-2.0")
    attributes = struct.pack(
        "=IIQQ",
        _BPF_PROG_TYPE_CGROUP_DEVICE,
        len(code) // 8,
        ctypes.addressof(instructions),
        ctypes.addressof(license_text),
    )
    return _bpf(_BPF_PROG_LOAD, attributes)


def _bpf(command: int, attributes: bytes) -> int:
    number = _SYSCALLS.get(platform.machine())
    if number is None:
        raise OSError(f"bpf(2) has no known number on {platform.machine()}")
    # The rest of the kernel's structure is zero.
    union = ctypes.create_string_buffer(attributes, _ATTRIBUTES_BYTES)
    result = _libc.syscall(number, command, ctypes.byref(union), _ATTRIBUTES_BYTES)
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return result
