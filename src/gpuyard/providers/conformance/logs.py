"""Output: whole, its last lines, as it comes, and much of it."""

import asyncio
from collections.abc import AsyncIterator

from gpuyard.domain.jobconfig import JobStatus
from gpuyard.providers.conformance.subject import STAY, Subject, case

_LINES = 60_000


async def check_log(subject: Subject) -> None:
    """Standard output and standard error are one log, in order; a last line without its
    newline is part of it. The status has it, too.
    """
    code = """
        import sys
        print("one", flush=True)
        print("two", file=sys.stderr, flush=True)
        sys.stdout.buffer.write("naïve 火車".encode())
        """
    result, log = await subject.finish(subject.job(code))
    assert log == "one\ntwo\nnaïve 火車", (
        f"the log should hold all that was written: {log!r}"
    )
    assert result.logs == log, f"the status should have the log: {result}"


async def check_empty_log(subject: Subject) -> None:
    """A job that writes nothing has an empty log, not an error."""
    log = await subject.succeed(subject.job("pass"))
    assert log == "", f"the log should be empty: {log!r}"


async def check_undecodable_log(subject: Subject) -> None:
    """Bytes that are no UTF-8 do not spoil the rest."""
    code = r"import sys; sys.stdout.buffer.write(b'before\n\xff\xfe\nafter\n')"
    lines = (await subject.succeed(subject.job(code))).splitlines()
    assert (lines[0], lines[-1], len(lines)) == (
        "before",
        "after",
        3,
    ), f"the lines around should be whole: {lines}"


async def check_last_lines(subject: Subject) -> None:
    """`lines` gives the last so many: 0 none, more than there are all."""
    job_id = await subject.submit(subject.job("for i in range(100): print('line', i)"))
    await subject.ended(job_id)
    every = [f"line {i}" for i in range(100)]
    for lines, wanted in (
        (0, []),
        (1, every[-1:]),
        (7, every[-7:]),
        (100, every),
        (1000, every),
    ):
        got = (await subject.provider.get_job_logs(job_id, lines)).splitlines()
        assert got == wanted, (
            f"the last {lines} lines should be {len(wanted)}, from {wanted[:1]}:"
            f" {got[:3]}… ({len(got)})"
        )


async def check_big_log(subject: Subject) -> None:
    """A log of some megabytes arrives whole, in order and once."""
    code = (
        "for i in range(int(__import__('sys').argv[1])): print('a line of some length,"
        " number', i)"
    )
    log = await subject.succeed(subject.job(code, str(_LINES)))
    wanted = "".join(f"a line of some length, number {i}\n" for i in range(_LINES))
    assert len(log) == len(wanted), (
        f"the log has {len(wanted)} characters; {len(log)} came"
    )
    assert log == wanted, "the log came with other content"


async def check_log_while_running(subject: Subject) -> None:
    """The log of a running job can be read, whole and its last lines, without waiting
    for the end.
    """
    job_id = await subject.running(subject.job(STAY))
    assert await subject.provider.get_job_logs(job_id, 1) == "here\n", (
        "the line it has written should be there"
    )
    await subject.until(job_id, JobStatus.RUNNING)


async def check_log_of_a_talker(subject: Subject) -> None:
    """Reading the log of a job that never stops writing comes to an end, and `lines` is
    kept to.
    """
    job_id = await subject.running(
        subject.job("while True: print('on and on', flush=True)")
    )
    try:
        log = await asyncio.wait_for(
            subject.provider.get_job_logs(job_id), subject.patience_s
        )
    except TimeoutError:
        raise AssertionError(
            "get_job_logs should answer with what there is, not wait for the end"
        ) from None
    assert log.startswith("on and on\n"), (
        f"the log should begin at its beginning: {log[:50]!r}"
    )
    tail = await subject.provider.get_job_logs(job_id, 3)
    assert len(tail.splitlines()) in (
        3,
        4,
    ), f"3 lines (and perhaps half a one) were asked for: {tail[:200]!r}"


async def check_follow(subject: Subject) -> None:
    """Lines are streamed while the job runs, and the stream ends with the job."""
    provider = subject.provider
    job_id = await subject.submit(subject.job(STAY))
    got = b""
    async for part in _in_time(
        subject, provider.stream_logs(job_id, lines=None, follow=True)
    ):
        if not got:
            result = await subject.provider.get_job_status(job_id)
            assert result.status in (
                JobStatus.PENDING,
                JobStatus.RUNNING,
            ), f"the line came after the end: {result}"
            await subject.provider.cancel_job(job_id)
        got += part
    assert got == b"here\n", f"the stream should hold the whole log: {got!r}"
    await subject.ended(job_id)


async def check_follow_to_the_end(subject: Subject) -> None:
    """A stream that follows a job holds its last line too, once; one of an ended job
    ends by itself.
    """
    provider = subject.provider
    code = "import time\nfor i in range(20): print(i, flush=True); time.sleep(0.01)"
    job_id = await subject.submit(subject.job(code))
    wanted = "".join(f"{i}\n" for i in range(20)).encode()
    for moment in ("while it ran", "after its end"):
        stream = provider.stream_logs(job_id, lines=None, follow=True)
        got = b"".join([part async for part in _in_time(subject, stream)])
        assert got == wanted, (
            f"the stream followed {moment} should hold each line once: {got!r}"
        )
        await subject.ended(job_id)


async def _in_time(
    subject: Subject, stream: AsyncIterator[bytes]
) -> AsyncIterator[bytes]:
    """The parts of a stream, none of which may be longer in coming than the subject's
    patience.
    """
    while True:
        try:
            part = await asyncio.wait_for(anext(stream, None), subject.patience_s)
        except TimeoutError:
            raise AssertionError(
                f"nothing came of the stream for {subject.patience_s:g} s, not even"
                " its end"
            ) from None
        if part is None:
            return
        yield part


CASES = tuple(
    map(
        case,
        (
            check_log,
            check_empty_log,
            check_undecodable_log,
            check_last_lines,
            check_big_log,
            check_log_while_running,
            check_log_of_a_talker,
            check_follow,
            check_follow_to_the_end,
        ),
    )
)
