"""A process under another account: what it becomes, and what stops it before."""

import ctypes
import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuyard.config.accounts import Account
from gpuyard.node.input_pipe import new_pipe
from gpuyard.node.launcher import LaunchError, ProcessIdentity
from tests.support.accounts import PYTHON, real_account

WHO = """
import json, os
lines = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(json.dumps({
    "uids": os.getresuid(), "gids": os.getresgid(), "groups": os.getgroups(),
    "umask": int(lines["Umask"], 8), "no_new_privs": int(lines["NoNewPrivs"]),
    "capabilities": [int(lines[n], 16) for n in ("CapInh", "CapPrm", "CapEff", "CapAmb")],
    "cwd": os.getcwd(), "leads_session": os.getsid(0) == os.getpid(),
}))
"""


@pytest.fixture(scope="module")
def account() -> Iterator[Account]:
    with real_account() as made:
        yield made


@pytest.fixture
def home(account: Account) -> Path:
    return Path(account.home)


def test_a_process_is_its_account_and_nothing_of_root(start, ended, log, account, home):
    identity = ProcessIdentity(account, umask=0o027)
    exit = ended(start(PYTHON, "-c", WHO, workdir=home, identity=identity))
    assert exit.code == 0, log.read_text()
    assert json.loads(log.read_text()) == {
        "uids": [account.uid] * 3,
        "gids": [account.gid] * 3,
        "groups": list(account.groups),
        "umask": 0o027,
        "no_new_privs": 0,
        "capabilities": [0, 0, 0, 0],
        "cwd": str(home),
        "leads_session": True,
    }


def test_privileges_can_be_forgone(start, ended, log, account, home):
    identity = ProcessIdentity(account, no_new_privileges=True)
    ended(start(PYTHON, "-c", WHO, workdir=home, identity=identity))
    assert json.loads(log.read_text())["no_new_privs"] == 1


def test_a_process_opens_its_output_by_name_and_the_log_stays_roots(
    start, ended, log, account, home
):
    script = "echo out >> /dev/stdout; echo err >> /dev/stderr; cat /dev/stdin"
    identity = ProcessIdentity(account)
    process = start("sh", "-c", script, workdir=home, identity=identity, stdin=b"in\n")
    assert ended(process).code == 0, log.read_text()
    assert log.read_text() == "out\nerr\nin\n"
    assert log.stat().st_uid == os.getuid()


def test_a_process_opens_the_pipe_of_its_input_by_name(
    start, ended, log, account, home
):
    with new_pipe("a", account.gid) as (reader, holder):
        identity = ProcessIdentity(account)
        process = start(
            "cat", "/dev/stdin", workdir=home, identity=identity, stdin=reader
        )
    writer = holder.open_pipe()
    os.write(writer, b"one\n")
    os.close(writer)
    holder.dismiss()
    holder.reap()
    assert ended(process).code == 0, log.read_text()
    assert log.read_text() == "one\n"


def test_a_folder_that_the_account_may_not_enter_is_named(start, account, tmp_path):
    inner = tmp_path / "closed" / "inner"
    inner.mkdir(parents=True)
    tmp_path.chmod(0o755)
    inner.parent.chmod(0o700)
    with pytest.raises(LaunchError) as refused:
        start("true", workdir=inner, identity=ProcessIdentity(account))
    assert refused.value.reason == "workdir_missing"
    assert account.name in str(refused.value)
    assert str(inner) in str(refused.value)


def test_a_folder_that_it_must_write_to_is_named(start, account, home, tmp_path):
    identity = ProcessIdentity(account, folders=(Path("/usr"),))
    with pytest.raises(LaunchError, match=f"{account.name} may not use .* /usr$"):
        start("true", workdir=home, identity=identity)


def test_a_program_that_only_root_may_run_names_the_account(start, account, home):
    program = home / "program"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o700)
    with pytest.raises(LaunchError, match=f"cannot be run by {account.name}"):
        start(str(program), workdir=home, identity=ProcessIdentity(account))


KEYRING = """
import ctypes, sys
libc = ctypes.CDLL(None, use_errno=True)
key = libc.syscall(int(sys.argv[1]), 10, -3, b"user", b"gpuyard:root", 0)
print("found" if key > 0 else ctypes.get_errno())
"""


def test_a_process_finds_no_key_of_roots_session(
    start, ended, log, account, home
) -> None:
    call = {"x86_64": (248, 250), "aarch64": (217, 219)}[os.uname().machine]
    add_key, keyctl = call
    libc = ctypes.CDLL(None, use_errno=True)
    session = -3
    added = libc.syscall(add_key, b"user", b"gpuyard:root", b"secret", 6, session)
    assert added > 0, os.strerror(ctypes.get_errno())
    arguments = ("-c", KEYRING, str(keyctl))
    try:
        ended(
            start(PYTHON, *arguments, workdir=home, identity=ProcessIdentity(account))
        )
    finally:
        unlink = 9
        libc.syscall(keyctl, unlink, added, session)
    assert log.read_text() == f"{errno.ENOKEY}\n"
