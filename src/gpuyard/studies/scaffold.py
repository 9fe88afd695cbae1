"""Write the files of `gpuyard study init`: a commented study.toml and forty prompts.

The prompts are the same on every machine.
"""

import random
from pathlib import Path

from gpuyard.domain.errors import InvalidInputError, RefusedError
from gpuyard.studies.study import BUDGETS, FILE, VARIANTS

_TEMPLATE = Path(__file__).parent / "template"
COUNT = 20
# Plain English with names and figures, as the tokenizers of Llama 3 and Qwen 2.5 cut
# it.
CHARACTERS_PER_TOKEN = 4.4
_WORDS = {
    "month": (
        "January",
        "March",
        "April",
        "May",
        "June",
        "August",
        "September",
        "October",
        "November",
    ),
    "place": (
        "Marlow Point",
        "the Grey Ferry",
        "Sallow Bay",
        "Upper Tarn",
        "the Long Weir",
        "Cold Harbour",
        "Thornfield",
        "the Salt Landing",
        "Ravel Sound",
        "Old Quarry",
    ),
    "name": (
        "Mr Adler",
        "Miss Byrne",
        "Captain Cole",
        "Mrs Dunn",
        "Mr Eskil",
        "Miss Farrow",
        "Dr Gale",
        "Mr Hobbs",
        "Mrs Ivers",
        "Miss Jarvis",
    ),
    "craft": ("cutter", "barge", "packet", "lugger", "ketch"),
    "goods": (
        "seed potatoes",
        "window glass",
        "lamp oil",
        "printed forms",
        "instruments",
    ),
    "ground": (
        "coarse sand",
        "soft mud",
        "broken shells",
        "stiff clay",
        "loose gravel",
    ),
    "wind": ("north-east", "south-west", "west", "north", "south-east"),
}
_TASKS = (
    (
        "Name every entry that mentions {place}, by its number, and say in one sentence"
        " what happened in each."
    ),
    (
        "Summarise what {name} did or reported, in the order of the entries, in no more"
        " than five sentences."
    ),
    (
        "List the entries in which water, rain or the tide played a part, and give the"
        " reason for each choice."
    ),
    (
        "Which three entries would a person responsible for {place} have to act upon"
        " first? Explain the order."
    ),
    (
        "Write a short letter to {name} that tells what happened in the last five"
        " entries, without repeating any figure."
    ),
)


def init(directory: Path) -> list[Path]:
    """Write a study into a folder, which is made; what was written.

    RefusedError where a study is already.
    """
    if (directory / FILE).exists():
        raise RefusedError(
            f"{directory} holds a study already.", "Name another folder."
        )
    files = {FILE: _template(FILE), "README.md": _template("README.md")}
    for variant in VARIANTS:
        files[f"data/prompts_{variant}.txt"] = (
            "\n---\n".join(prompts(BUDGETS[variant])) + "\n"
        )
    present = [name for name in files if (directory / name).exists()]
    if present:
        raise RefusedError(
            f"{directory} holds {', '.join(present)} already.", "Name another folder."
        )
    try:
        for name, text in files.items():
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            (directory / name).write_text(text, encoding="utf-8")
    except OSError as error:
        fault = f"cannot be written to: {error.strerror}"
        raise InvalidInputError.of(
            str(directory), fault, "name a folder that you may write to"
        ) from None
    return [directory / name for name in files]


def prompts(tokens: int) -> list[str]:
    """Twenty prompts of about so many tokens."""
    passages = _template("passages.txt").splitlines()
    return [_prompt(place, tokens, passages) for place in range(1, COUNT + 1)]


def _prompt(place: int, tokens: int, passages: list[str]) -> str:
    """Build one prompt: a log book with a question about it.

    Prompts of the same position have about the same content in every variant, but
    differ in length.
    """
    chance = random.Random(place)
    head = (
        f"Below are entries from log book {place}. Read them, then do what is asked at"
        " the end.\n"
    )
    task = _TASKS[place % len(_TASKS)].format(**_words(chance))
    room = int(tokens * CHARACTERS_PER_TOKEN) - len(head) - len(task)
    entries: list[str] = []
    while True:
        passage = chance.choice(passages).format(**_words(chance))
        entry = f"Entry {len(entries) + 1}. {passage}\n"
        if len(entry) // 2 > room:
            return "\n".join([head, *entries, task])
        entries.append(entry)
        room -= len(entry) + 1


def _words(chance: random.Random) -> dict[str, str]:
    low = chance.randint(2, 9)
    figures = {
        "day": _ordinal(chance.randint(1, 28)),
        "low": str(low),
        "high": str(low + chance.randint(3, 40)),
    }
    return {slot: chance.choice(words) for slot, words in _WORDS.items()} | figures


def _ordinal(day: int) -> str:
    ending = (
        "th"
        if 10 <= day % 100 <= 20
        else {1: "st", 2: "nd", 3: "rd"}.get(day % 10, "th")
    )
    return f"{day}{ending}"


def _template(name: str) -> str:
    return (_TEMPLATE / name).read_text(encoding="utf-8")
