"""Messages between server and agent: what is encoded comes back, and garbage is refused
before it costs memory.
"""

import struct
from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.domain import wire

FROM_AGENT = get_args(wire.FromAgent)
TO_AGENT = get_args(wire.ToAgent)
# Tags that differ from the name of their class; agents that run already send them.
TAGS = {
    wire.NumberedReport: "Report",
    wire.StartAttempt: "Start",
    wire.StopAttempt: "Stop",
}

# Whole numbers as msgpack has them, and as a database takes them.
st.register_type_strategy(int, st.integers(-(2**63), 2**63 - 1))
st.register_type_strategy(float, st.floats(allow_nan=False))
progress = st.dictionaries(
    st.text(), st.none() | st.integers(-(2**63), 2**63 - 1) | st.text(), max_size=3
)


def messages(kind: type) -> st.SearchStrategy:
    fixed = {"progress": progress} if kind is wire.ProgressSeen else {}
    if kind is wire.NumberedReport:
        bodies = [
            messages(body)
            for body in get_args(wire.NumberedReport.__annotations__["body"])
        ]
        fixed = {"body": st.one_of(bodies)}
    return st.builds(kind, **fixed)


@given(st.one_of([messages(kind) for kind in FROM_AGENT]))
def test_what_an_agent_says_is_heard_as_it_was_said(message):
    frame = wire.encode(message)
    assert wire.frame_length(frame[:4]) == len(frame) - 4
    assert wire.decode_from_agent(frame[4:]) == message


@given(st.one_of([messages(kind) for kind in TO_AGENT]))
def test_what_a_server_says_is_heard_as_it_was_said(message):
    frame = wire.encode(message)
    assert wire.frame_length(frame[:4]) == len(frame) - 4
    assert wire.decode_to_agent(frame[4:]) == message


@pytest.mark.parametrize(
    "kind", [*FROM_AGENT, *TO_AGENT], ids=lambda kind: kind.__name__
)
def test_every_message_says_its_kind(kind):
    assert kind.__struct_config__.tag == TAGS.get(kind, kind.__name__)
    assert kind.__struct_config__.frozen


@pytest.mark.parametrize(
    "length", [wire.MAX_FRAME + 1, 2**32 - 1, struct.unpack(">I", b"GET ")[0]]
)
def test_an_absurd_frame_is_refused_by_its_header(length):
    with pytest.raises(ValueError, match="the peer does not speak our protocol"):
        wire.frame_length(struct.pack(">I", length))


def test_the_largest_frame_is_accepted():
    assert wire.frame_length(struct.pack(">I", wire.MAX_FRAME)) == wire.MAX_FRAME


@given(st.binary(max_size=200))
def test_garbage_is_a_value_error(body):
    for decode in (wire.decode_from_agent, wire.decode_to_agent):
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
        wire.encode(wire.Leave())[4:],
    ],
)
def test_what_is_no_message_of_an_agent(body):
    with pytest.raises(ValueError):
        wire.decode_from_agent(body)


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
    assert wire.decode_from_agent(body) == wire.Found(1, "a", "ended")
