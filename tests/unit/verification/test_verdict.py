"""The verdict on a check: what each fault comes to, and that nobody is blamed for
another's.
"""

from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.domain.verifications import NewVerification
from gpuyard.verification.claims import Expected
from gpuyard.verification.keys import public_hex
from gpuyard.verification.receipts import Receipt, sign
from gpuyard.verification.solver.messages import canonical
from gpuyard.verification.tolerance import Limits, Printed
from gpuyard.verification.verdict import CheckOutcome, judge, outcome
from tests.unit.verification.bundles import (
    ANSWERS,
    NOW,
    SERIES,
    answer_file,
    answered,
    evidence,
)

KEY = Ed25519PrivateKey.generate()
WRONG = {**ANSWERS, SERIES[4]: "the answer to something else"}


def verdict(**changes: Any) -> tuple[CheckOutcome, dict[str, tuple[bool | None, str]]]:
    lines = judge(evidence(**changes))
    return outcome(lines), {line.name: (line.ok, line.reason) for line in lines}


def test_a_check_that_is_passed() -> None:
    found, lines = verdict()
    assert found is CheckOutcome.PASSED
    assert list(lines) == ["hash", "answers", "comparison", "deadline"] and all(
        ok for ok, _ in lines.values()
    )
    assert lines["deadline"][1] == "took 8.000 s of 10.000 s"


@pytest.mark.parametrize(
    ("changes", "name", "reason"),
    [
        (
            answered(WRONG),
            "comparison",
            (
                "differs from the trusted one at character 15; the trusted executor"
                " was not"
            ),
        ),
        (
            answered(WRONG) | {"answer_again": ANSWERS[SERIES[4]]},
            "comparison",
            "asked again, says the same as before",
        ),
        ({"hashed_at": NOW + 10.001}, "deadline", "took 10.001 s of 10.000 s"),
        ({"hashed_at": NOW - 1}, "deadline", "1.000 s before the seed was out"),
        (
            {"answers": answer_file(WRONG)},
            "hash",
            "and '",
        ),  # another file than the one that was hashed
        ({"answers": answer_file(ANSWERS) + b" "}, "hash", "was said"),
        ({"answers": None}, "hash", "a hash came, and no answers to it"),
        (
            {"answers": None, "unread": "65 MiB unpacked"},
            "hash",
            "no answers to it: 65 MiB unpacked",
        ),
        (
            answered(list(ANSWERS.values())),
            "answers",
            "are no map of prompts to texts: Expected `object`, got `array`",
        ),
        (answered({**ANSWERS, SERIES[0]: 5}), "answers", "Expected `str`, got `int`"),
        (
            answered({**ANSWERS, "more": "x"}),
            "answers",
            "lack 0 prompts and have 1 that were not asked",
        ),
        (answered({SERIES[4]: ANSWERS[SERIES[4]]}), "answers", "lack 11 prompts"),
        (
            answered(b'{"prompt 4":"x",' + answer_file(ANSWERS)[1:]),
            "answers",
            "no key twice",
        ),
        (
            answered(answer_file(ANSWERS).replace(b":", b": ", 1)),
            "answers",
            "no spaces",
        ),
        (
            answered(answer_file(ANSWERS)[:-9]),
            "answers",
            "are no map of prompts to texts",
        ),
        (answered(b"[" * 100_000), "answers", "are no map"),
        (answered(b"\xff\xfe"), "answers", "are no map"),
        (answered(b""), "answers", "are no map"),
    ],
)
def test_what_fails_a_check(changes: dict[str, Any], name: str, reason: str) -> None:
    found, lines = verdict(**changes)
    assert found is CheckOutcome.FAILED
    assert [line for line, (ok, _) in lines.items() if ok is False] == [name]
    assert reason in lines[name][1]


@given(st.text())
def test_any_text_can_be_the_right_answer(text: str) -> None:
    answers = canonical({**ANSWERS, SERIES[4]: text})
    (said,) = (
        line
        for line in judge(evidence(**answered(answers), trusted_answer=text))
        if line.name == "answers"
    )
    assert said.ok, said


def test_right_answers_that_are_late_pass_nothing() -> None:
    found, lines = verdict(hashed_at=NOW + 3600)
    assert found is CheckOutcome.FAILED and lines["comparison"][0] is True


def test_who_says_nothing_has_failed() -> None:
    found, lines = verdict(sha256=None, answers=None, hashed_at=None, released_at=None)
    assert (
        found is CheckOutcome.FAILED and lines["hash"][1] == "no hash of answers came"
    )


def test_a_trusted_executor_that_does_not_repeat_itself_blames_nobody() -> None:
    found, lines = verdict(**answered(WRONG), answer_again=WRONG[SERIES[4]])
    assert found is CheckOutcome.BLAMELESS
    assert lines["comparison"][0] is None
    assert (
        "at character 15, but the trusted executor itself says something else now"
        in lines["comparison"][1]
    )


def test_but_it_excuses_nothing_else() -> None:
    assert (
        verdict(**answered(WRONG), answer_again="?", hashed_at=NOW + 99)[0]
        is CheckOutcome.FAILED
    )


def test_what_broke_on_our_side_blames_nobody() -> None:
    found, lines = verdict(fault="the hub was killed", answers=None, sha256=None)
    assert found is CheckOutcome.BLAMELESS and lines["fault"] == (
        None,
        "not the executor's: the hub was killed",
    )


def test_who_waits_behind_other_jobs_of_ours_has_neither_failed_nor_passed() -> None:
    found, lines = verdict(waited="job_1 has not begun", answers=None, sha256=None)
    assert found is CheckOutcome.WAITED and lines == {
        "waited": (None, "other jobs of ours come first: job_1 has not begun")
    }


def test_the_nonce_of_claims_follows_from_all_that_was_fixed_before() -> None:
    limits = dict.fromkeys(Limits.__struct_fields__, 1.0)
    prints = [Printed(limits=Limits(**limits), sha256=one) for one in (None, "ab" * 32)]
    nonces = {
        evidence().nonce,
        evidence(check="chk_2").nonce,
        evidence(seed=8).nonce,
        evidence(**answered(WRONG)).nonce,
        evidence(printed=prints[1]).nonce,
        evidence(salt="ab").nonce,
    }
    assert len(nonces) == 6
    assert evidence(printed=prints[0]).nonce == evidence().nonce
    assert evidence(sha256=None, answers=None).nonce == ""


def test_a_claim_that_is_wrong_fails_a_check_with_right_answers() -> None:
    expected = Expected(
        "practice-12",
        nonce=evidence().nonce,
        vram_gb=0.001,
        vram_digest="ab" * 32,
        claims_s=9.0,
    )
    right = {"vram": {"gigabytes": 0.001, "digest": "ab" * 32}}
    assert verdict(expected=expected, claims=right)[0] is CheckOutcome.PASSED
    for claims in ({"vram": {"gigabytes": 0.001, "digest": "cd" * 32}}, {}, None):
        found, lines = verdict(expected=expected, claims=claims)
        assert found is CheckOutcome.FAILED and lines["vram_digest"][0] is False


@pytest.mark.parametrize("stopped", ["fault", "unexplained"])
def test_what_stops_a_check_hides_no_claim_that_came(stopped: str) -> None:
    expected = Expected(
        "practice-12",
        nonce=evidence().nonce,
        vram_gb=0.001,
        vram_digest="ab" * 32,
        claims_s=9.0,
    )
    wrong = {"vram": {"gigabytes": 0.001, "digest": "cd" * 32}}
    right = {"vram": {"gigabytes": 0.001, "digest": "ab" * 32}}
    found, lines = verdict(expected=expected, claims=wrong, **{stopped: "it hangs"})
    assert found is CheckOutcome.FAILED and lines["vram_digest"][0] is False
    nothing = {"fault": CheckOutcome.BLAMELESS, "unexplained": CheckOutcome.UNEXPLAINED}
    for claims in (right, None):  # none came before it was stopped
        found, _ = verdict(expected=expected, claims=claims, **{stopped: "it hangs"})
        assert found is nothing[stopped]


def excused(**changes: Any) -> dict[str, Any]:
    receipt = Receipt(
        "rcp_1", "slurm/a100", "job_1", "practice-12", NOW - 60, 600, "instance"
    )
    declined = {"sha256": None, "answers": None, "hashed_at": None, "declined_at": NOW}
    return {
        **declined,
        "receipts": (sign(receipt, KEY),),
        "issuers": {"instance": public_hex(KEY)},
        **changes,
    }


def test_who_is_shown_to_be_at_work_is_excused() -> None:
    found, lines = verdict(**excused())
    assert found is CheckOutcome.EXCUSED and lines == {
        "busy": (True, "at work for instance at that time")
    }


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"declined_at": NOW + 601}, "a receipt expired 61 s ago"),
        ({"declined_at": None}, "a receipt begins"),
        ({"executor": "slurm/other"}, "a receipt is of another executor"),
        ({"gpu_class": "h200"}, "a receipt is of another class"),
        ({"issuers": {}}, "whose key is not known"),
        ({"issuers": {"instance": "zz"}}, "is 'zz', which is no public Ed25519 key"),
        ({"slots": 2}, "all 2 of its slots"),
    ],
)
def test_an_excuse_that_is_none_is_a_failure(
    changes: dict[str, Any], reason: str
) -> None:
    found, lines = verdict(**excused(**changes))
    assert found is CheckOutcome.FAILED and reason in lines["busy"][1]


def test_a_receipt_excuses_no_answers_that_came() -> None:
    assert (
        verdict(**excused(**answered(WRONG), hashed_at=NOW + 1))[0]
        is CheckOutcome.FAILED
    )
    assert verdict(sha256=None, answers=None, receipts=())[0] is CheckOutcome.FAILED


def test_the_interface_names_every_outcome() -> None:
    text = NewVerification.__doc__ or ""
    assert [one for one in CheckOutcome if f"`{one}`" not in text] == []
