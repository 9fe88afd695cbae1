"""Evidence: a file that a third party checks, and what hostile hands may do to it."""

import json
import os
import resource
import sys
from base64 import b64encode
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from gpuyard.domain.errors import InvalidInputError
from gpuyard.verification import evidence as module
from gpuyard.verification import fingerprints, receipts
from gpuyard.verification.claims import Expected
from gpuyard.verification.classes import TRAITS
from gpuyard.verification.evidence import (
    LARGEST,
    CheckedEvidence,
    check_evidence,
    longest_answers,
    longest_series,
    public_order,
    write_evidence,
)
from gpuyard.verification.keys import public_hex
from gpuyard.verification.prompts import (
    MAX_PROMPT_BYTES,
    chosen_prompts,
    fault_of_series,
)
from gpuyard.verification.protocol import LONGEST_LINE, SAMPLING
from gpuyard.verification.receipts import Receipt
from gpuyard.verification.tolerance import Limits, Printed
from gpuyard.verification.verdict import CheckOutcome, Evidence
from tests.support.programs import run_program
from tests.unit.verification.bundles import (
    ANSWERS,
    NOW,
    SERIES,
    answer_file,
    answered,
    evidence,
    public_pem,
)

KEY = Ed25519PrivateKey.generate()
OTHER = Ed25519PrivateKey.generate()
NO_LIMITS = Limits(**dict.fromkeys(Limits.__struct_fields__, 1.0))
NO_PRINTS = Printed(limits=NO_LIMITS, sha256="0" * 64)
WRONG = answered({**ANSWERS, SERIES[4]: "another"})


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Evidence of a failed check."""
    assert (
        write_evidence(tmp_path / "evidence.json", evidence(**WRONG), KEY)
        is CheckOutcome.FAILED
    )
    return tmp_path / "evidence.json"


def failing(verdict: CheckedEvidence) -> set[str]:
    return {line.name for line in verdict.about_file if line.ok is False}


def change(file: Path, key: Ed25519PrivateKey | None = None, **fields: Any) -> None:
    """Change fields of the evidence, and sign it anew where there is a key; `outcome`
    stands beside them.
    """
    whole = json.loads(file.read_bytes())
    body = whole["body"]
    for name, value in fields.items():
        (body if name == "outcome" else body["evidence"])[name] = value
    if key:
        raw = msgspec.json.encode(body)
        whole |= {
            "key": public_hex(key),
            "signature": key.sign(vars(module)["_CONTEXT"] + raw).hex(),
        }
    file.write_bytes(msgspec.json.encode(whole))


@pytest.mark.parametrize(
    "form", [public_hex(KEY), public_pem(KEY), None], ids=["hex", "pem", "none"]
)
def test_a_failure_is_proven_line_by_line(file: Path, form: str | None) -> None:
    verdict = check_evidence(file, form)
    assert verdict.sound and verdict.outcome is CheckOutcome.FAILED
    assert (verdict.check, verdict.executor, verdict.gpu_class) == (
        "chk_1",
        "slurm/a100",
        "practice-12",
    )
    assert [line.name for line in verdict.about_file] == [
        "signature",
        "signer",
        "series",
        "hidden",
        "outcome",
    ]
    assert {line.name: line.ok for line in verdict.about_check} == {
        "hash": True,
        "answers": True,
        "comparison": False,
        "deadline": True,
    }
    assert {line.name: line.ok for line in verdict.about_file}["signer"] is (
        None if form is None else True
    )
    assert all(line.reason for line in (*verdict.about_file, *verdict.about_check))


def test_a_passed_check_and_an_excused_one_are_proven_too(tmp_path: Path) -> None:
    receipt = receipts.sign(
        Receipt(
            "rcp_1", "slurm/a100", "job_1", "practice-12", NOW - 60, 600, "instance"
        ),
        KEY,
    )
    declined: dict[str, Any] = {
        "sha256": None,
        "answers": None,
        "declined_at": NOW,
        "receipts": (receipt,),
        "issuers": {"instance": public_hex(KEY)},
    }
    for changes, outcome in (
        ({}, CheckOutcome.PASSED),
        (declined, CheckOutcome.EXCUSED),
        ({"fault": "x"}, CheckOutcome.BLAMELESS),
    ):
        assert write_evidence(tmp_path / outcome, evidence(**changes), KEY) is outcome
        verdict = check_evidence(tmp_path / outcome, public_hex(KEY))
        assert verdict.sound and verdict.outcome is outcome


def test_evidence_is_of_its_time_and_of_no_other(tmp_path: Path) -> None:
    """So that one which was good long ago does not pass for one of today."""
    times: dict[str, dict[str, Any]] = {
        "seed": {},
        "declined": {"released_at": None, "declined_at": NOW + 5},
        "neither": {"released_at": None},
    }
    for name, changes in times.items():
        write_evidence(tmp_path / name, evidence(**changes), KEY)
    found = {name: check_evidence(tmp_path / name) for name in times}
    assert {name: one.at for name, one in found.items()} == {
        "seed": NOW,
        "declined": NOW + 5,
        "neither": None,
    }
    assert {one.delivery for one in found.values()} == {"stream"}


def test_everything_that_went_in_comes_out(tmp_path: Path) -> None:
    expected = Expected(
        "a100-80gb",
        inventory=True,
        products=142,
        vram_gb=68.0,
        vram_digest="ab" * 32,
        shared={"u": "x"},
    )
    whole = evidence(
        expected=expected,
        claims={"inventory": [], "speed": {"digest": "ef" * 32}},
        seed=-(2**63),
        trusted="é\u2028",
    )
    write_evidence(tmp_path / "a", whole, KEY)
    body = msgspec.json.decode((tmp_path / "a").read_bytes())["body"]
    assert msgspec.convert(body["evidence"], Evidence, strict=False) == whole
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


CHANGES: list[dict[str, Any]] = [
    {"outcome": "passed"},
    {"executor": "slurm/rival"},
    {"seed": 8},
    {"trusted_answer": "another"},
    {"hidden": SERIES[5]},
    {"deadline_s": 1.0},
    {"hashed_at": NOW + 99},
    {"answers": "e30="},
    {"sha256": "00" * 32},
    {"answer_again": "x"},
]


@pytest.mark.parametrize("fields", CHANGES, ids=lambda fields: next(iter(fields)))
def test_whatever_is_changed_the_signature_shows_it(
    file: Path, fields: dict[str, Any]
) -> None:
    change(file, **fields)
    verdict = check_evidence(file, public_hex(KEY))
    assert not verdict.sound and "signature" in failing(verdict)


def test_one_changed_byte_of_the_body_shows(file: Path) -> None:
    content = file.read_bytes()
    file.write_bytes(content.replace(b'"seed":7', b'"seed": 7'))
    assert failing(check_evidence(file)) == {"signature"}


def test_signed_anew_by_another_it_is_another_signer(file: Path) -> None:
    change(file, OTHER, executor="slurm/rival")
    assert failing(check_evidence(file, public_hex(KEY))) == {"signer"}
    # Without the instance's key nobody can tell, and that is said.
    verdict = check_evidence(file)
    assert (
        verdict.sound
        and {line.name: line.ok for line in verdict.about_file}["signer"] is None
    )
    assert "give the instance's key" in verdict.about_file[1].reason


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"outcome": "passed"}, "outcome"),
        ({"hidden": "a prompt that nobody was asked"}, "hidden"),
        ({"series": []}, "series"),
        ({"series": [*SERIES, SERIES[0]]}, "series"),
    ],
)
def test_a_instance_that_signs_what_does_not_follow_is_found_out(
    file: Path, fields: dict[str, Any], name: str
) -> None:
    change(file, KEY, **fields)
    verdict = check_evidence(file, public_hex(KEY))
    assert (
        not verdict.sound
        and name in failing(verdict)
        and "signature" not in failing(verdict)
    )


def test_digests_for_other_answers_are_found_out(tmp_path: Path) -> None:
    """Their nonce follows from the hash of the answers, and is computed again."""
    claims = {"vram": {"gigabytes": 0.001, "digest": "ab" * 32}}
    terms: dict[str, Any] = {
        "vram_gb": 0.001,
        "vram_digest": "ab" * 32,
        "claims_s": 9.0,
    }
    right = Expected("practice-12", nonce=evidence().nonce, **terms)
    path = tmp_path / "evidence.json"
    whole = evidence(expected=right, claims=claims)
    assert write_evidence(path, whole, KEY) is CheckOutcome.PASSED
    other = {**ANSWERS, SERIES[0]: "another answer, which nobody compares"}
    fields = {**answered(other), "answers": b64encode(answer_file(other)).decode()}
    change(path, KEY, **fields)
    verdict = check_evidence(path, public_hex(KEY))
    assert failing(verdict) == {"outcome"}
    assert verdict.outcome is CheckOutcome.UNJUDGED
    (line,) = [line for line in verdict.about_check if line.name == "vram_digest"]
    assert line.ok is None and "for another nonce" in line.reason


def test_what_was_signed_as_a_receipt_is_no_evidence(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_CONTEXT", vars(receipts)["_CONTEXT"])
    change(file, KEY)
    monkeypatch.undo()
    assert failing(check_evidence(file)) == {"signature"}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00" * 100,
        b"PK\x03\x04" + b"\x00" * 100,
        b"{}",
        b"[]",
        b"5",
        b"\xff\xfe",
        b"[" * 10**6,
        b'{"a":' * 10**5,
        b'{"format": "gpuyard evidence", "version": 3}',
        b'{"format":"gpuyard evidence","version":3,"key":"","signature":"","body":'
        + b"[" * 10**6
        + b"}",
        b'{"format":"gpuyard evidence","version":3,"key":"","signature":"","body":{}}',
    ],
)
def test_a_file_that_is_no_evidence_gets_one_error(
    tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(content)
    with pytest.raises(
        InvalidInputError,
        match=r"x\.json: is no .* \(give a file that `gpuyard verify evidence` wrote",
    ):
        check_evidence(path)


def test_every_cut_is_noticed(file: Path) -> None:
    content = file.read_bytes()
    for length in range(0, len(content) - 1, 37):
        file.write_bytes(content[:length])
        with pytest.raises(InvalidInputError, match=r"evidence\.json: is no"):
            check_evidence(file)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"seed": "x"}, r"Expected `int`, got `str` - at `\$.evidence.seed`"),
        ({"more": 1}, "unknown field `more`"),
        ({"outcome": "great"}, "Invalid enum value 'great'"),
        ({"answers": "?"}, "Invalid base64"),
        ({"series": [1]}, r"Expected `str`, got `int` - at `\$.evidence.series"),
    ],
)
def test_a_field_that_is_wrong_is_named(
    file: Path, fields: dict[str, Any], words: str
) -> None:
    change(file, KEY, **fields)
    with pytest.raises(InvalidInputError, match=words):
        check_evidence(file)


def test_another_version_is_told(file: Path) -> None:
    whole = file.read_bytes()
    file.write_bytes(whole.replace(b'"version":3', b'"version":4', 1))
    with pytest.raises(
        InvalidInputError,
        match="is 'gpuyard evidence' of version 4, not 'gpuyard evidence' of 3",
    ):
        check_evidence(file)
    file.write_bytes(whole.replace(b'"version":3', b'"version":2', 1))
    with pytest.raises(
        InvalidInputError,
        match=r"of version 2, written by an older gpuyard \(check it with that version",
    ):
        check_evidence(file)


def test_what_is_no_file_holds_nobody_up(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "nothing", tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(InvalidInputError, match="is no file that can be read"):
            check_evidence(path)


def test_a_key_that_is_none_is_refused(file: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"key: is 'abc', which is no public"):
        check_evidence(file, "abc")


def test_a_file_of_any_size_costs_bounded_memory(tmp_path: Path) -> None:
    """One that is too large is not read, and one that is made to be costly stays within
    bounds.
    """
    large = tmp_path / "large"
    costly = tmp_path / "costly"
    with large.open("wb") as file:
        file.truncate(2**40)  # a hole: it takes no room
    write_evidence(costly, evidence(claims={"x": "MARK"}), KEY)
    room = LARGEST - costly.stat().st_size - 100
    costly.write_bytes(
        costly.read_bytes().replace(b'"MARK"', b"[" + b"{}," * (room // 3) + b"{}]")
    )
    program = (
        "import sys; from pathlib import Path; from gpuyard.verification.evidence"
        " import check_evidence\n"
        "from gpuyard.domain.errors import InvalidInputError\n"
        "try: check_evidence(Path(sys.argv[1])); print('read')\n"
        "except InvalidInputError as error: print(error)\n"
        # `ru_maxrss` would begin with what the process that started it has.
        "print(int(Path('/proc/self/status').read_text().partition('VmHWM:')[2].split()[0])"
        " // 1024)"
    )
    for path, said, most_mb in (
        (large, "larger than evidence ever is", 200),
        (costly, "read", 900),
    ):
        done = run_program([sys.executable, "-c", program, path])
        told, megabytes = done.stdout.splitlines()
        assert said in told and int(megabytes) < most_mb


def test_what_would_be_too_large_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"answers: make \d+ bytes of evidence"):
        write_evidence(tmp_path / "a", evidence(**answered({"x": "y" * LARGEST})), KEY)
    assert list(tmp_path.iterdir()) == []


def test_evidence_of_the_largest_class_has_room_for_all_that_can_come(
    tmp_path: Path,
) -> None:
    """The longest series, answers of all tokens, both files of fingerprints, and a line
    of claims.
    """
    prompts = max(one.prompts for one in TRAITS.values())
    most = SAMPLING["max_tokens"]
    room = longest_series(prompts, most) - 3 * prompts
    size = min(room // prompts, MAX_PROMPT_BYTES) - 10
    series = tuple(f"{number:09d} {'a' * (size - 10)}" for number in range(prompts))
    assert fault_of_series(series) is None
    prints = bytes(fingerprints.most_bytes(prompts, most))
    asked = evidence(
        series=series,
        hidden=series[0],
        printed=NO_PRINTS,
        claims={"speed": {"digest": "x" * (LONGEST_LINE - 100)}},
        answers=None,
    )
    longest = longest_answers(asked, most)
    assert longest >= len(msgspec.json.encode(series)) + 12 * prompts * most
    printed = msgspec.structs.replace(
        NO_PRINTS, file=prints, trusted=prints, texts_sha256="0" * 64
    )
    whole = msgspec.structs.replace(
        asked, answers=bytes(longest), printed=printed, trusted_answer="a" * 50_000
    )
    write_evidence(tmp_path / "whole", whole, KEY)
    every = msgspec.structs.replace(asked, printed=None)
    longest = longest_answers(every, most)
    answers = dict.fromkeys(series[1:], "")
    answers[series[0]] = "a" * (longest - len(msgspec.json.encode(series)))
    whole = msgspec.structs.replace(
        every, answers=bytes(longest), trusted_answers=answers
    )
    write_evidence(tmp_path / "every", whole, KEY)


def test_a_series_that_evidence_has_no_room_for_is_refused_with_the_figures() -> None:
    prompts = [f"{number} {'a' * 8000}" for number in range(480)]
    fault = fault_of_series(prompts)
    assert fault and "480 prompts of 3," in fault and "and at most 897," in fault
    with pytest.raises(ValueError, match="fit evidence beside the answers"):
        chosen_prompts(prompts, 480)
    assert fault_of_series(prompts[:240]) is None


def test_a_disk_that_is_full_leaves_what_was_there(file: Path) -> None:
    before = file.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            write_evidence(file, evidence(), KEY)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert file.read_bytes() == before and list(file.parent.iterdir()) == [file]


def test_no_secret_of_an_order_goes_into_it() -> None:
    order: dict[str, Any] = {
        "settings": {"temperature": 0.5, "max_tokens": 256},
        "engine": {
            "kind": "openai",
            "model": "llama",
            "url": "http://user:word@host",
            "api_key": "s3cret",
        },
        "stream": {"key": "-----BEGIN PRIVATE KEY-----"},
        "seed": 7,
    }
    assert public_order(order) == (
        {"temperature": 0.5, "max_tokens": 256},
        {"kind": "openai", "model": "llama"},
    )
    assert answer_file({"b": "é", "a": ""}) == '{"a":"","b":"é"}'.encode()
