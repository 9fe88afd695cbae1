"""Random messages of the agents' protocol: well formed with random fields, mutated, and
noise. The same seed gives the same messages.
"""

import random
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from gpuyard.domain import wire_frames

_NUMBERS = (-(2**63), -1, 0, 1, 2, 1000, 2**31, 2**53, 2**63 - 1, 2**64 - 1)
_FLOATS = (float("nan"), float("inf"), float("-inf"), -1.0, 0.0, 0.5, 1.7e9, 1e308)
_TAME_NUMBERS = (0, 1, 2, 1000, 2**31, 2**53)
_TAME_FLOATS = (0.0, 0.5, 1000.0, 1.7e9)
_TEXTS = ("", "a", "idle", "ended", "\0", "é🙂", "../..", "x" * 70_000, "' OR 1=1 --")
# Values of these fields come from the test, so that messages hit what exists.
Given = Mapping[str, Sequence[Any]]


class Fuzzer:
    """Makes frames; `given`: values to choose from, by the name of the field."""

    def __init__(self, seed: int, given: Given) -> None:
        self._random = random.Random(seed)
        self._given = given
        self._wild = False
        self._make: dict[type[Any], Callable[[Any], Any]] = {
            msgspec.inspect.BoolType: lambda _: self.choose((True, False)),
            msgspec.inspect.IntType: lambda _: self.choose(
                _NUMBERS if self._wild else _TAME_NUMBERS
            ),
            msgspec.inspect.FloatType: lambda _: self.choose(
                _FLOATS if self._wild else _TAME_FLOATS
            ),
            msgspec.inspect.StrType: lambda _: self.choose(_TEXTS),
            msgspec.inspect.BytesType: lambda _: self._random.randbytes(20),
            msgspec.inspect.NoneType: lambda _: None,
            msgspec.inspect.AnyType: lambda _: self._anything(3),
            msgspec.inspect.ListType: self._list,
            msgspec.inspect.DictType: self._dict,
            msgspec.inspect.UnionType: lambda kind: self._value(
                self.choose(kind.types)
            ),
            msgspec.inspect.StructType: lambda kind: self.message(kind.cls),
        }

    def choose(self, values: Sequence[Any]) -> Any:
        return self._random.choice(values)

    def message(self, kind: type[Any]) -> Any:
        """A message of this kind."""
        info: Any = msgspec.inspect.type_info(kind)
        return kind(**{field.name: self._field(field) for field in info.fields})

    def frame(self, kinds: Sequence[type[Any]]) -> bytes:
        """A frame with one of these; most are as they should be."""
        # Of a wild message no value is believable.
        self._wild = self._random.random() < 0.05
        try:
            whole = wire_frames.encode(self.message(self.choose(kinds)))
        except (OverflowError, ValueError):
            return self.frame(kinds)
        damage = self._random.randrange(60)
        if damage == 0:
            return self._flipped(whole)
        if damage == 1:
            return struct.pack(">I", len(whole)) + whole[: len(whole) // 2]
        if damage == 2:
            return self._random.randbytes(self._random.randrange(1, 60))
        if damage == 3:
            return struct.pack(">I", wire_frames.MAX_FRAME + 1) + whole
        if damage == 4:
            body = msgspec.msgpack.encode(self._anything(4))
            return struct.pack(">I", len(body)) + body
        if damage == 5:
            return struct.pack(">I", 100_000) + b"\x91" * 100_000
        return whole

    def _flipped(self, whole: bytes) -> bytes:
        changed = bytearray(whole)
        changed[self._random.randrange(len(changed))] ^= 1 << self._random.randrange(8)
        return bytes(changed)

    def _field(self, field: Any) -> Any:
        if field.name in self._given and not self._wild:
            return self.choose(self._given[field.name])
        if not field.required and self._random.random() < 0.5:
            default = field.default
            return field.default_factory() if default is msgspec.NODEFAULT else default
        return self._value(field.type)

    def _value(self, kind: Any) -> Any:
        return self._make[type(kind)](kind)

    def _list(self, kind: Any) -> list[Any]:
        return [self._value(kind.item_type) for _ in range(self._random.randrange(4))]

    def _dict(self, kind: Any) -> dict[Any, Any]:
        return {
            self._value(kind.key_type): self._value(kind.value_type)
            for _ in range(self._random.randrange(4))
        }

    def _anything(self, depth: int) -> Any:
        plain: tuple[Any, ...] = (*_TAME_NUMBERS, *_FLOATS, *_TEXTS, None, True)
        if self._wild:
            plain = (*plain, *_NUMBERS, b"\xff\0")
        if depth == 0:
            return self.choose(plain)
        form = self._random.randrange(4)
        if form == 0:
            return [self._anything(depth - 1) for _ in range(3)]
        if form == 1:
            return {self.choose(_TEXTS): self._anything(depth - 1) for _ in range(3)}
        return self.choose(plain)
