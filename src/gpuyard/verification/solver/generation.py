"""Series of prompts: the engine writes them, and templates fill up what is missing."""

import random
from collections.abc import Iterable, Iterator

from .engines import SolverEngine

# More prompts are requested than needed, because some are empty or repeated.
SURPLUS = 10
_ROUNDS = 3
_SHORTEST = 12
_LONGEST = 400
_SUBJECTS = (
    "a lighthouse",
    "tides",
    "the history of bread",
    "prime numbers",
    "a violin",
    "migrating birds",
    "volcanoes",
    "railway timetables",
    "chess openings",
    "rust",
    "the moon",
    "a market square",
    "glaciers",
    "photography",
    "honey",
    "old maps",
    "clouds",
    "a city at night",
    "paper",
    "bridges",
    "sleep",
    "spices",
    "deserts",
    "a workshop",
    "comets",
)
_FORMS = (
    "a short question about {}",
    "a riddle about {}",
    "an instruction to explain {} to a child",
    "a request for a short story about {}",
    "a question that compares {} with something else",
    "a request for three facts about {}",
    "an instruction to describe {} without naming it",
)
_OWN = (
    "Explain {} as if it were {}, in the year {}.",
    "Write a story about {} and {} that has {} words.",
    "What have {} and {} in common? Begin with the number {}.",
    "Compare {} with {} in a letter dated {}.",
)


def make_series(
    engine: SolverEngine, count: int, prompts: int, seed: int
) -> list[list[str]]:
    """Make `count` series of `prompts` prompts; no prompt occurs twice."""
    chance = random.Random(seed)
    known: set[str] = set()
    return [_one(engine, prompts, chance, known) for _ in range(count)]


def _one(
    engine: SolverEngine, prompts: int, chance: random.Random, known: set[str]
) -> list[str]:
    made: list[str] = []
    for _ in range(_ROUNDS):
        before = len(made)
        wishes = list(dict.fromkeys(_wish(chance) for _ in range(prompts + SURPLUS)))
        _add(made, engine.answer(wishes, chance.getrandbits(63)), prompts, known)
        if len(made) in (before, prompts):
            break
    while len(made) < prompts:
        _add(made, _own(chance), prompts, known)
    return made


def _add(made: list[str], texts: Iterable[str], prompts: int, known: set[str]) -> None:
    for text in texts:
        prompt = _clean(text)
        if len(prompt) >= _SHORTEST and prompt not in known and len(made) < prompts:
            known.add(prompt)
            made.append(prompt)


def _clean(text: str) -> str:
    """Make it one line of printable characters."""
    words = "".join(
        character if character.isprintable() else " " for character in text
    ).split()
    return " ".join(words)[:_LONGEST].strip()


def _wish(chance: random.Random) -> str:
    form = chance.choice(_FORMS).format(chance.choice(_SUBJECTS))
    return f"Write {form}. Answer with nothing else. (Number {chance.randrange(10**6)})"


def _own(chance: random.Random) -> Iterator[str]:
    one, other = chance.sample(_SUBJECTS, 2)
    yield chance.choice(_OWN).format(one, other, chance.randrange(100, 10**6))
