"""The published model that a program begins with, and the published data that it reads,
by their names.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from gpuyard.insight.needs.facts import facts_of
from gpuyard.insight.needs.interpreter import Interpreter
from gpuyard.insight.needs.sources import Sources
from gpuyard.insight.needs.values import Thing

_NAMES = ("pretrained_model_name_or_path", "model_name", "model_name_or_path")


@dataclass(frozen=True, slots=True)
class Named:
    """Names as the program has them; None for what it does not say."""

    base_model: str | None = None
    data: str | None = None


def named_in(sources: Sources, arguments: Sequence[str]) -> Named:
    """What the program of `sources` names with these arguments; InvalidInputError if it
    cannot be read.
    """
    interpreter = Interpreter(sources, arguments)
    facts = facts_of(interpreter, interpreter.run())
    bases = [_base_of(model.thing) for model in facts.models]
    data = facts.data.name if facts.data else None
    return Named(next(filter(None, bases), None), data)


def _base_of(thing: Thing) -> str | None:
    """The name with which `from_pretrained` was called; None for a path."""
    if not thing.name.endswith(".from_pretrained"):
        return None
    name = thing.argument(0, *_NAMES)
    is_name = isinstance(name, str) and not name.startswith(("/", "."))
    return name if is_name else None
