"""Names of datasets, manifests, and where the stream of files is cut."""

import json
import random
from typing import Any

import pytest

from gpuyard.domain.dataset_names import DatasetReference
from gpuyard.domain.datasets import CHUNK_BYTES, Manifest, chunk_sizes, read_manifest
from gpuyard.domain.errors import InvalidInputError
from gpuyard.domain.validation import parse_spec

SHA = "a" * 64
MB = 1 << 20


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("tiny", (None, "tiny", None, None)),
        ("tiny@3", (None, "tiny", 3, None)),
        ("vision/tiny-2.0@12", ("vision", "tiny-2.0", 12, None)),
        ("my project/tiny", ("my project", "tiny", None, None)),
    ],
)
def test_a_reference_is_read_and_written(text: str, expected: Any) -> None:
    reference = DatasetReference.parse(text)
    assert reference == expected
    assert str(reference) == text


@pytest.mark.parametrize(
    "text",
    ["", "@1", "a/b/c", "tiny@", "tiny@new", "tiny@-1", "tiny@1@2", "..", "/etc", "ä"],
)
def test_what_names_no_dataset_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"names no|is no name"):
        DatasetReference.parse(text)


def test_the_variable_of_a_dataset_can_be_used_in_a_shell() -> None:
    assert DatasetReference.parse("p/tiny-2.0@1").variable == "GPUYARD_DATASET_TINY_2_0"


def manifest(files: Any, chunks: Any = ((SHA, 3),)) -> bytes:
    return json.dumps({"files": files, "chunks": chunks}).encode()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"[]", "no manifest"),
        (b"{", "no manifest"),
        (manifest([["a", "3", False]]), "no manifest"),
        (manifest([]), "1 to"),
        (manifest([["/a", 3, False]]), "absolute"),
        (manifest([["../a", 3, False]]), "leads elsewhere"),
        (manifest([["a//b", 3, False]]), "leads elsewhere"),
        (manifest([["a/./b", 3, False]]), "leads elsewhere"),
        (manifest([["a\nb", 3, False]]), "cannot be printed"),
        (manifest([["a" * 256, 3, False]]), "too long"),
        (manifest([["b", 1, False], ["a", 2, False]]), "not in order"),
        (manifest([["a", 1, False], ["a", 2, False]]), "not in order"),
        (manifest([["a", 1, False], ["a/b", 2, False]]), "a file and a folder"),
        (manifest([["a", -3, False]]), "size"),
        (manifest([["a", 4, False]]), "have 3 bytes"),
        (manifest([["a", 3, False]], [["x", 3]]), "no chunk"),
        (manifest([["a", 3, False]], [[SHA, CHUNK_BYTES + 1]]), "no chunk"),
    ],
)
def test_a_manifest_of_what_cannot_be_is_refused(content: bytes, words: str) -> None:
    with pytest.raises(InvalidInputError, match=words):
        read_manifest(content)


def test_equal_manifests_have_one_digest() -> None:
    first = read_manifest(manifest([["a", 3, False]]))
    again = Manifest([("a", 3, False)], [(SHA, 3)])
    assert first.digest == again.digest
    assert read_manifest(first.encoded()) == first


def cut(files: list[tuple[str, int]]) -> list[int]:
    sizes = list(chunk_sizes(files))
    assert sum(sizes) == sum(size for _, size in files)
    assert all(0 < size <= CHUNK_BYTES for size in sizes)
    return sizes


def test_a_large_file_has_chunks_of_its_own() -> None:
    files = [("a", 10), ("b", 20 * MB), ("c", 10)]
    assert cut(files) == [10, 8 * MB, 8 * MB, 4 * MB, 10]


def test_nothing_but_empty_files_needs_no_chunk() -> None:
    assert cut([("a", 0), ("b", 0)]) == []


def test_the_chunks_of_other_files_stay_when_one_is_added() -> None:
    names = [(f"image-{number:05d}.png", 50_000) for number in range(2000)]
    before = spans(names)
    after = spans(sorted([*names, ("image-00777b.png", 40_000)]))
    assert len(before) > 10
    assert len(before - after) == 1, "the chunk in which it is"


def spans(files: list[tuple[str, int]]) -> set[tuple[tuple[str, int], ...]]:
    """Of which files, and how much of each, each chunk is made."""
    found: set[tuple[tuple[str, int], ...]] = set()
    left = list(files)
    for size in chunk_sizes(files):
        part: list[tuple[str, int]] = []
        while size:
            path, rest = left.pop(0)
            taken = min(rest, size)
            part.append((path, taken))
            size -= taken
            if rest > taken:
                left.insert(0, (path, rest - taken))
        found.add(tuple(part))
    return found


def test_any_files_are_cut_into_chunks_that_fit() -> None:
    chance = random.Random(7)
    for _ in range(200):
        sizes = [
            int(chance.choice([0, 1, 1000, MB, 9 * MB]) * chance.random())
            for _ in range(chance.randrange(1, 40))
        ]
        cut([(f"{number:03d}", size) for number, size in enumerate(sizes)])


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("plays:/data", DatasetReference(None, "plays", None, "/data")),
        ("lab/plays@2:/a//b/", DatasetReference("lab", "plays", 2, "/a/b")),
        ("a:b/plays", DatasetReference("a:b", "plays", None)),
    ],
)
def test_a_place_in_a_container_stands_behind_a_colon(
    text: str, wanted: DatasetReference
) -> None:
    found = DatasetReference.parse(text)
    assert found == wanted
    assert DatasetReference.parse(str(found)) == found
    assert found.place == (wanted.path or "/datasets/plays")


@pytest.mark.parametrize(
    "text", ["plays:data", "plays:/", "plays:/a/../b", "plays:/etc/x", "plays:/a\n"]
)
def test_a_place_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"container|no dataset"):
        DatasetReference.parse(text)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"datasets": ["a:/x"]}, "the job names no image"),
        ({"datasets": ["a:/x", "b:/x"], "image": "i"}, "one path twice"),
        ({"datasets": ["a"], "prompt": "hi", "model": "m"}, "only a command"),
    ],
)
def test_a_job_that_cannot_have_it_there_is_refused(
    fields: dict[str, Any], words: str
) -> None:
    command = {} if "prompt" in fields else {"command": ["true"]}
    with pytest.raises(InvalidInputError) as refused:
        parse_spec({**command, **fields})
    assert refused.value.faults[0].field == "datasets"
    assert words in refused.value.faults[0].fault
