"""Messages between server and agent: what is encoded comes back, and garbage is refused
before it costs memory.
"""

import struct
from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.domain import wire, wire_frames

FROM_AGENT = get_args(wire.FromAgent)
TO_AGENT = get_args(wire.ToAgent)
# Tags that differ from the name of their class; agents that run already send them.
TAGS = {
    wire.NumberedReport: "Report",
    wire.StartAttempt: "Start",
    wire.StopAttempt: "Stop",
}

# Numbers that JSON and databases hold.
st.register_type_strategy(int, st.integers(0, 2**53))
st.register_type_strategy(float, st.floats(0.0, 1e9))
progress = st.dictionaries(
    st.text(), st.none() | st.integers(-(2**53), 2**53) | st.text(), max_size=3
)
attempt_ids = st.from_regex(r"\A[A-Za-z0-9_][A-Za-z0-9_.-]{0,40}\Z")
gpus = st.lists(
    st.builds(wire.GpuStatus, compute_capability=st.sampled_from(["", "8.6", "10.0"])),
    max_size=3,
)
# Fields whose values are limited further.
LIMITED = {
    "progress": progress,
    "attempt_id": attempt_ids,
    "attempt_ids": st.lists(attempt_ids, max_size=3),
    "gpus": gpus,
    "port": st.integers(0, 65535),
    "digests": st.lists(st.from_regex(r"\A[0-9a-f]{64}\Z"), max_size=3),
    "sha256": st.from_regex(r"\A[0-9a-f]{64}\Z"),
    "process": st.text(max_size=64),
}


def messages(kind: type) -> st.SearchStrategy:
    fixed = {
        name: strategy
        for name, strategy in LIMITED.items()
        if name in kind.__struct_fields__
    }
    if kind is wire.NumberedReport:
        bodies = [
            messages(body)
            for body in get_args(wire.NumberedReport.__annotations__["body"])
        ]
        fixed = {"body": st.one_of(bodies)}
    return st.builds(kind, **fixed)


@given(st.one_of([messages(kind) for kind in FROM_AGENT]))
def test_what_an_agent_says_is_heard_as_it_was_said(message):
    frame = wire_frames.encode(message)
    assert wire_frames.frame_length(frame[:4]) == len(frame) - 4
    assert wire_frames.decode_from_agent(frame[4:]) == message


@pytest.mark.parametrize(
    "message",
    [
        wire.Started("a", float("nan"), 1),
        wire.Started("a", 1.0, 2**60),
        wire.Started("a", 1.0, 1, limits={str(n): "x" for n in range(65)}),
        wire.Started("a", 1.0, 1, facts={str(n): "x" for n in range(65)}),
        wire.UsageSeen("a", [wire.SeriesPoint("x", 0, None, 1.0, float("inf"))]),
        wire.GpusSeen([wire.GpuStatus("GPU-1", 0, "A100", 1, compute_capability="x")]),
        wire.Ended("a", float("nan"), None, exit_code=0),
        wire.ProgressSeen("a", {"step": 2**60}),
        wire.ProgressSeen("a", {"step": [[[[[[[[[1]]]]]]]]]}),
        wire.ProgressSeen("a", {"step": b"1"}),
    ],
    ids=repr,
)
def test_what_the_ledger_cannot_hold_is_refused(message):
    frame = wire_frames.encode(wire.NumberedReport(7, message))
    found = wire_frames.decode_from_agent(frame[4:])
    assert isinstance(found, wire_frames.UnreadableReport)
    assert (found.seq, bool(found.fault)) == (7, True)


def test_an_end_counts_without_what_cannot_be_read_of_it():
    plain = {"attempt_id": "a", "at": 2.0, "started_at": 1.0, "exit_code": 3}
    report = wire.Ended(**plain, usage={"cpu_s": float("nan")})
    frame = wire_frames.encode(wire.NumberedReport(7, report))
    found = wire_frames.decode_from_agent(frame[4:])
    assert found == wire.NumberedReport(7, wire.Ended(**plain))


@pytest.mark.parametrize(
    "fields",
    [
        {"memory_gb": float("nan")},
        {"memory_gb": 1e10},
        {"cpus": -1},
        {"problem": "x" * 33_000},
        {"limits": {"memory": "x" * 33_000}},
    ],
    ids=repr,
)
def test_what_no_machine_says_of_itself_is_refused(fields):
    honest = {"node_id": "n", "name": "n", "boot_id": "b", "cpus": 1, "memory_gb": 1.0}
    hello = wire.Hello(**(honest | fields))
    with pytest.raises(ValueError):
        wire_frames.decode_from_agent(wire_frames.encode(hello)[4:])


@pytest.mark.parametrize("name", ["", "..", "../../etc/x", "a/b", "a\n", "x" * 201])
def test_an_id_that_leads_elsewhere_names_no_attempt(name):
    with pytest.raises(ValueError):
        wire_frames.decode_to_agent(wire_frames.encode(wire.Find(1, name))[4:])


@given(st.one_of([messages(kind) for kind in TO_AGENT]))
def test_what_a_server_says_is_heard_as_it_was_said(message):
    frame = wire_frames.encode(message)
    assert wire_frames.frame_length(frame[:4]) == len(frame) - 4
    assert wire_frames.decode_to_agent(frame[4:]) == message


@pytest.mark.parametrize(
    "kind", [*FROM_AGENT, *TO_AGENT], ids=lambda kind: kind.__name__
)
def test_every_message_says_its_kind(kind):
    assert kind.__struct_config__.tag == TAGS.get(kind, kind.__name__)
    assert kind.__struct_config__.frozen


@pytest.mark.parametrize(
    "length", [wire_frames.MAX_FRAME + 1, 2**32 - 1, struct.unpack(">I", b"GET ")[0]]
)
def test_an_absurd_frame_is_refused_by_its_header(length):
    with pytest.raises(ValueError, match="the peer does not speak our protocol"):
        wire_frames.frame_length(struct.pack(">I", length))


def test_the_largest_frame_is_accepted():
    assert (
        wire_frames.frame_length(struct.pack(">I", wire_frames.MAX_FRAME))
        == wire_frames.MAX_FRAME
    )


@given(st.binary(max_size=200))
def test_garbage_is_a_value_error(body):
    for decode in (wire_frames.decode_from_agent, wire_frames.decode_to_agent):
        try:
            decode(body)
        except ValueError:
            continue


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc1",
        msgspec.msgpack.encode({"type": "Elephant"}),
        msgspec.msgpack.encode({"type": "Started", "attempt_id": "a"}),
        msgspec.msgpack.encode(
            {"type": "Started", "attempt_id": 5, "at": 1.0, "pid": 1}
        ),
        wire_frames.encode(wire.Leave())[4:],
    ],
)
def test_what_is_no_message_of_an_agent(body):
    with pytest.raises(ValueError):
        wire_frames.decode_from_agent(body)


def test_a_newer_agent_may_say_more():
    body = msgspec.msgpack.encode(
        {
            "type": "Found",
            "request": 1,
            "attempt_id": "a",
            "state": "ended",
            "new": True,
        }
    )
    assert wire_frames.decode_from_agent(body) == wire.Found(1, "a", "ended")


@given(bodies=st.lists(st.binary(max_size=6), max_size=5), size=st.integers(1, 12))
def test_frames_are_taken_as_they_come_however_they_are_cut(
    bodies: list[bytes], size: int
):
    sent = b"".join(struct.pack(">I", len(body)) + body for body in bodies)
    received = bytearray()
    taken: list[bytes] = []
    for start in range(0, len(sent), size):
        received += sent[start : start + size]
        taken += wire_frames.take_frames(received)
    assert (taken, received) == (bodies, b"")
