"""What goes into a job arrives exactly, and what cannot run says so."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory

from gpuyard.domain.errors import ProviderError
from gpuyard.providers.conformance.subject import Subject, case, need

_AWKWARD = {
    "plain": "word",
    "empty": "",
    "spaces": "  two  words ",
    "quotes": 'it\'s "quoted" `here`',
    "lines": "one\ntwo\r\n\tthree",
    "unicode": "naïve 火車 🚂",
    "shell": "$HOME $(id) ; rm -rf / & | > < * ? ~ ! #",
    "backslash": "C:\\new\\0 %s {x}",
    "option": "--flag=-n",
}
_ECHO = (
    "import json, os, sys; print(json.dumps([sys.argv[1:], {k: os.environ.get(k) for k"
    " in sys.argv[1:]}]))"
)
_READ = "import sys; data = sys.stdin.buffer.read(); print(len(data), data.hex())"


async def check_arguments(subject: Subject) -> None:
    """Arguments arrive exactly: quotes, newlines, Unicode, empty, what a shell would
    change.
    """
    got = json.loads(await subject.succeed(subject.job(_ECHO, *_AWKWARD.values())))[0]
    assert got == list(_AWKWARD.values()), f"the arguments changed on the way: {got}"


async def check_environment(subject: Subject) -> None:
    """So does the environment."""
    values = {f"CONFORMANCE_{name.upper()}": value for name, value in _AWKWARD.items()}
    got = json.loads(
        await subject.succeed(subject.job(_ECHO, *values, environment=values))
    )[1]
    assert got == values, f"the environment changed on the way: {got}"


async def check_stdin(subject: Subject) -> None:
    """`args_via_stdin` is read on standard input, byte for byte, and then comes its
    end.
    """
    data = bytes(range(256)) * 300
    log = await subject.succeed(subject.job(_READ, args_via_stdin=data))
    assert log.strip() == f"{len(data)} {data.hex()}", (
        f"the bytes changed on the way: {log[:200]!r}"
    )


async def check_no_stdin(subject: Subject) -> None:
    """Without it, standard input is at its end at once: no job waits for a person."""
    log = await subject.succeed(subject.job(_READ))
    assert log.split() == ["0"], f"standard input should be empty: {log!r}"


async def check_unknown_program(subject: Subject) -> None:
    """A program that is not there fails visibly, and the explanation names it."""
    said = await subject.failure(
        subject.job("").model_copy(update={"command": ("no-such-program-7f3a", "x")})
    )
    assert "no-such-program-7f3a" in said, (
        f"the explanation should name the program: {said!r}"
    )


async def check_missing_workdir(subject: Subject) -> None:
    """A working directory that is not there fails visibly, and the explanation names
    it.
    """
    need(subject.missing_workdir, "jobs have no working directory to name")
    options = dict(subject.missing_workdir or {})
    said = await subject.failure(subject.job("pass", options=options))
    assert any(str(value) in said for value in options.values()), (
        f"the explanation should name the folder: {said!r}"
    )


async def check_impossible_argument(subject: Subject) -> None:
    """An argument that no process can be given (a NUL byte) fails visibly."""
    said = await subject.failure(subject.job("pass", "nul\0byte"))
    assert said, "there should be an explanation"


async def check_volumes(subject: Subject) -> None:
    """A volume is there for the program, or it is refused and the explanation names it;
    it is never left out in silence.
    """
    with TemporaryDirectory(prefix="conformance-") as folder:
        Path(folder).chmod(0o755)
        Path(folder, "word").write_text("from this host")
        code = "print(open('/conformance/word').read())"
        config = subject.job(code, volumes={"/conformance": folder})
        try:
            log = await subject.succeed(config)
        except ProviderError as error:
            assert "volumes" in str(error), f"the error should name it: {error}"
        else:
            assert log == "from this host\n", f"the volume has another word: {log!r}"


CASES = tuple(
    map(
        case,
        (
            check_arguments,
            check_environment,
            check_stdin,
            check_no_stdin,
            check_unknown_program,
            check_missing_workdir,
            check_impossible_argument,
            check_volumes,
        ),
    )
)
