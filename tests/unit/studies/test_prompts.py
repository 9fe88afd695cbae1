"""Prompts: from files to the table, and what is said of files that are wrong."""

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.domain.errors import InvalidInputError, NotFoundError
from gpuyard.studies.prompts import (
    COLUMNS,
    PromptDataFrameBuilder,
    PromptFileSet,
    PromptRepository,
    TokenCounter,
    budget_warnings,
    split_prompts,
)
from tests.unit.studies.folders import write_prompts

LINES = st.text(
    st.characters(codec="utf-8", exclude_characters="\r\n"), min_size=1
).filter(lambda line: line.strip() and not line.startswith("---"))
PROMPTS = st.lists(
    st.lists(LINES, min_size=1, max_size=4).map("\n".join), min_size=1, max_size=6
)


@given(PROMPTS, st.booleans(), st.booleans())
def test_prompts_of_any_number_of_lines_come_back(
    prompts: list[str], before: bool, after: bool
) -> None:
    text = "---\n" * before + "\n---\n".join(prompts) + "\n" + "---\n" * after
    assert split_prompts(text) == [
        (f"p{place:02d}", prompt) for place, prompt in enumerate(prompts, 1)
    ]


@given(PROMPTS)
def test_ids_on_separators_come_back(prompts: list[str]) -> None:
    text = "".join(f"--- q{place}\n{prompt}\n" for place, prompt in enumerate(prompts))
    assert split_prompts(text) == [
        (f"q{place}", prompt) for place, prompt in enumerate(prompts)
    ]


def test_blank_lines_inside_stay_and_around_go() -> None:
    assert split_prompts("\n\na\n\n  b\n\n---\n\nc\n") == [
        ("p01", "a\n\n  b"),
        ("p02", "c"),
    ]


def repository(folder: Path) -> PromptRepository:
    write_prompts(folder)
    return PromptRepository(PromptFileSet(folder))


def test_records_are_in_order_and_share_ids(tmp_path: Path) -> None:
    records = repository(tmp_path).load_all()
    assert [record.variant for record in records] == ["2k"] * 20 + ["4k"] * 20
    ids = [f"p{place:02d}" for place in range(1, 21)]
    assert [record.prompt_id for record in records] == ids * 2
    assert records[20].prompt == "Question 1 of 4k\nin two lines?"
    assert (records[0].token_budget, records[20].token_budget) == (2048, 4096)
    assert records[20].source_file == "prompts_4k.txt"


def test_files_are_read_once(tmp_path: Path) -> None:
    found = repository(tmp_path)
    first = found.load_all()
    for path in tmp_path.iterdir():
        path.unlink()
    assert found.load_all() == first
    assert found.get_by_id("p07", "4k").prompt == "Question 7 of 4k\nin two lines?"
    with pytest.raises(NotFoundError, match="p21"):
        found.get_by_id("p21")


def test_limits_and_variants(tmp_path: Path) -> None:
    found = repository(tmp_path)
    assert [(one.prompt_id, one.variant) for one in found.load_all(limit=2)] == [
        ("p01", "2k"),
        ("p02", "2k"),
        ("p01", "4k"),
        ("p02", "4k"),
    ]
    assert {one.variant for one in found.load_all(["4k"])} == {"4k"}
    assert len(found.load_all(limit=100)) == 40


def spoiled(folder: Path, change: Callable[[bytes], bytes], variant: str = "4k") -> str:
    write_prompts(folder)
    path = folder / f"prompts_{variant}.txt"
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(InvalidInputError) as caught:
        PromptFileSet(folder).validate()
    (fault,) = caught.value.faults
    assert fault.remedy
    return str(fault)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda raw: raw.partition(b"---\n")[2],
            (
                "holds 19 prompts, and not 20 (separate prompts by a line ---, or set"
                " prompts.count = 19)"
            ),
        ),
        (
            lambda raw: raw + b"---\nmore\n",
            (
                "holds 21 prompts, and not 20 (indent a line --- within a prompt, or"
                " set prompts.count = 21)"
            ),
        ),
        (
            lambda raw: b"",
            "holds 0 prompts, and not 20 (separate prompts by a line ---)",
        ),
        (
            lambda raw: raw.replace(b"Question 7 of 4k\nin two lines?", b"  ", 1),
            "empty prompt p07",
        ),
        (
            lambda raw: raw.replace(b"Question 7", b"Qu\xe9stion 7", 1),
            "not UTF-8 at byte 212 (0xe9)",
        ),
        (lambda raw: raw.decode().encode("utf-16"), "not UTF-8 at byte 0 (0xff)"),
        (
            lambda raw: raw.replace(b"---\n", b"--- p20\n", 1),
            "gives the id p20 to prompts 2 and 20",
        ),
        (
            lambda raw: raw.replace(b"---\n", b"--- p99\n", 1),
            "prompt 2 is p02 in prompts_2k.txt and p99 in prompts_4k.txt",
        ),
        (lambda raw: raw.replace(b"---\n", b"--- a/b\n", 1), "'a/b', which is no id"),
    ],
)
def test_a_file_that_is_wrong(
    tmp_path: Path, change: Callable[[bytes], bytes], words: str
) -> None:
    assert words in spoiled(tmp_path, change)


def test_a_missing_file_and_what_is_wrong_with_the_other(tmp_path: Path) -> None:
    write_prompts(tmp_path, 19)
    (tmp_path / "prompts_2k.txt").unlink()
    with pytest.raises(InvalidInputError) as caught:
        PromptFileSet(tmp_path).validate()
    assert [fault.field for fault in caught.value.faults] == [
        "prompts.2k",
        "prompts.4k",
    ]
    assert "there is no file" in str(caught.value) and "19 prompts" in str(caught.value)


def test_line_ends_and_marks_of_other_systems_do_not_count(tmp_path: Path) -> None:
    write_prompts(tmp_path)
    plain = PromptRepository(PromptFileSet(tmp_path)).load_all()
    for path in tmp_path.iterdir():
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))
    assert PromptRepository(PromptFileSet(tmp_path)).load_all() == plain


def test_the_table_is_the_same_when_read_again(tmp_path: Path) -> None:
    builder = PromptDataFrameBuilder(repository(tmp_path / "data"))
    frame = builder.build()
    assert tuple(frame.columns) == COLUMNS
    assert set(frame["status"]) == {"pending"}
    path = tmp_path / "run" / "prompts.parquet"
    builder.persist(frame, path)
    again = builder.read(path)
    assert again.equals(frame)
    assert [str(kind) for kind in again.dtypes] == [str(kind) for kind in frame.dtypes]
    # A column without a value has a type as well.
    assert "null" not in {str(kind) for kind in pq.read_schema(path).types}
    lines = [
        json.loads(line) for line in path.with_suffix(".jsonl").read_text().splitlines()
    ]
    assert [line["prompt_id"] for line in lines] == list(frame["prompt_id"])
    assert lines[39] == {
        "prompt_id": "p20",
        "variant": "4k",
        "prompt": "Question 20 of 4k\nin two lines?",
        "token_budget": 4096,
        "source_file": "prompts_4k.txt",
        "local_completion": None,
        "local_latency_ms": None,
        "status": "pending",
        "prompt_tokens": None,
    }
    assert sorted(entry.name for entry in path.parent.iterdir()) == [
        "prompts.jsonl",
        "prompts.parquet",
    ]


def tokenizer(folder: Path) -> Path:
    """One that takes each word as a token."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace

    made = Tokenizer(WordLevel({"?": 0}, unk_token="?"))
    made.pre_tokenizer = Whitespace()  # pyright: ignore[reportAttributeAccessIssue]
    made.save(str(folder / "tokenizer.json"))
    return folder / "tokenizer.json"


def test_tokens_are_counted_by_the_models_tokenizer(tmp_path: Path) -> None:
    count = TokenCounter(tokenizer(tmp_path))
    found = repository(tmp_path / "data")
    frame = PromptDataFrameBuilder(found, count).build(["2k"], limit=1)
    assert list(frame["prompt_tokens"]) == [8]
    warnings = list(budget_warnings(found.load_all(limit=1), count))
    assert warnings[0] == "p01 of 2k has 8 tokens, -100 % off its budget of 2048"
    assert len(warnings) == 2


def test_what_a_tokenizer_would_cut_off_or_fill_up_is_counted_as_it_is(
    tmp_path: Path,
) -> None:
    from tokenizers import Tokenizer

    path = tokenizer(tmp_path)
    made = Tokenizer.from_file(str(path))
    made.enable_truncation(4)
    made.enable_padding(length=4)
    made.save(str(path))
    count = TokenCounter(path)
    assert (count("a b c d e f"), count("a")) == (6, 1)


def test_a_file_that_is_no_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(InvalidInputError, match="is no tokenizer"):
        TokenCounter(tmp_path / "tokenizer.json")


def test_a_prompt_within_a_tenth_of_its_budget_is_fine(tmp_path: Path) -> None:
    write_prompts(tmp_path)
    count = TokenCounter(tokenizer(tmp_path))
    near = PromptRepository(PromptFileSet(tmp_path, {"2k": 8, "4k": 9})).load_all()
    assert [warning[:9] for warning in budget_warnings(near, count)] == [
        f"p{n:02d} of 4k" for n in range(1, 21)
    ]
