"""Answers judged by fingerprints: honest ones of another version pass, attacks fail."""

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from gpuyard.domain.errors import InvalidInputError
from gpuyard.verification.fingerprints import Fingerprint, PrintDifference, difference
from gpuyard.verification.protocol import SAMPLING
from gpuyard.verification.solver.engines.fingerprints import (
    TOP,
    UNKNOWN,
    pack_tokens,
    unpack_tokens,
)
from gpuyard.verification.solver.messages import canonical
from gpuyard.verification.tolerance import Printed, one_is_right
from gpuyard.verification.tolerance_limits import (
    LEAST_ERROR,
    limits_from,
    limits_in,
    ranges_of,
)
from gpuyard.verification.verdict import CheckOutcome, Evidence, judge, outcome
from tests.support.fingerprints import (
    OTHER_VERSION,
    PrintedFile,
    differences,
    sha256,
)
from tests.unit.verification.bundles import SERIES, evidence

RUNTIMES = {"runtime": {"engine": "mock 2"}, "trusted_runtime": {"engine": "mock"}}
LIMITS = limits_from(
    [differences(PrintedFile(SERIES, seed, OTHER_VERSION)) for seed in range(10)]
)
Spoil = Callable[[PrintedFile], None]


def checked(file: PrintedFile, **changes: Any) -> Evidence:
    """The evidence of a check with these answers, which the trusted one followed."""
    followed = file.followed()
    fields: dict[str, Any] = {
        **RUNTIMES,
        "settings": dict(SAMPLING),
        "seed": file.seed,
        "answers": file.texts,
        "sha256": sha256(file.texts),
        "printed": Printed(
            limits=LIMITS,
            sha256=sha256(file.prints),
            file=file.prints,
            trusted=followed.fingerprints,
            texts_sha256=sha256(canonical(dict(followed.texts))),
        ),
    }
    return evidence(**{**fields, **changes})


def comparison(found: Evidence) -> tuple[CheckOutcome, str]:
    lines = judge(found)
    (line,) = [one for one in lines if one.name == "comparison"]
    return outcome(lines), line.reason


def test_honest_executors_of_another_version_pass_and_the_line_says_by_how_much() -> (
    None
):
    outcomes = [
        comparison(checked(PrintedFile(SERIES, seed, OTHER_VERSION)))
        for seed in range(100, 140)
    ]
    assert {found for found, _ in outcomes} == {CheckOutcome.PASSED}
    reason = outcomes[0][1]
    assert "its engine is 'mock 2' and that of the trusted executor 'mock'" in reason
    assert "tokens" in reason and "(limit" in reason and "log-probabilities" in reason


def another_model(file: PrintedFile) -> None:
    file.answers = PrintedFile(
        file.prompts, file.seed, {**OTHER_VERSION, "model": "small"}
    ).answers


def another_seed(file: PrintedFile) -> None:
    file.answers = PrintedFile(file.prompts, file.seed + 1, OTHER_VERSION).answers


def other_prompts(file: PrintedFile) -> None:
    others = [f"another {prompt}" for prompt in file.prompts]
    file.answers = PrintedFile(others, file.seed, OTHER_VERSION).answers


def one_other_prompt(file: PrintedFile) -> None:
    other = PrintedFile(["another"], file.seed, OTHER_VERSION).answers[0]
    file.answers[3] = other


def made_up_logprobs(file: PrintedFile) -> None:
    """The right tokens, and chances that look like some."""
    chance = Random(1)
    for answer in file.answers:
        for one in answer.prints:
            one.logprobs = sorted(-9 * chance.random() - 2 for _ in range(TOP))[::-1]


def made_up_ids(file: PrintedFile) -> None:
    for answer in file.answers:
        for one in answer.prints:
            one.ids = [one.token, *range(1000, 1000 + TOP - 1)]


def coarse_weights(file: PrintedFile) -> None:
    """Ten times the noise, as of a quantised model."""
    coarse = {**OTHER_VERSION, "rounding": 0.2}
    file.answers = PrintedFile(file.prompts, file.seed, coarse).answers


def text_of_another_model_read_by_the_right_one(file: PrintedFile) -> None:
    """Right log-probabilities, because reading is cheaper than writing."""
    small = PrintedFile(file.prompts, file.seed, {"model": "small"})
    for answer, cheap in zip(file.answers, small.answers, strict=True):
        for one, other in zip(answer.prints, cheap.prints, strict=False):
            one.token = other.token % 24
        answer.prints[-1].token = 24
    file.answers = retold(file)


def retold(file: PrintedFile) -> Any:
    """The same answers, with the texts of their tokens."""
    texts = file.followed().texts
    for prompt, answer in zip(file.prompts, file.answers, strict=True):
        answer.text = texts[prompt]
    return file.answers


def cut_short(file: PrintedFile) -> None:
    for answer in file.answers:
        del answer.prints[4:]
    retold(file)


def other_text(file: PrintedFile) -> None:
    file.answers[0].text = "something else"


def a_token_that_no_model_has(file: PrintedFile) -> None:
    file.answers[0].prints[0].token = 4_000_000_000


def one_id_five_times(file: PrintedFile) -> None:
    file.answers[0].prints[0].ids = [1] * TOP


def no_chances(file: PrintedFile) -> None:
    file.answers[0].prints[0].logprobs = [float("nan")] * TOP


def too_much_chance(file: PrintedFile) -> None:
    file.answers[0].prints[0].logprobs = [0.0] * TOP


@pytest.mark.parametrize(
    "spoil, said",
    [
        (another_model, "differ by more than rounding"),
        (another_seed, "differ by more than rounding"),
        (other_prompts, "differ by more than rounding"),
        (one_other_prompt, "1 of 12 answers differ by more than rounding"),
        (made_up_logprobs, "differ by more than rounding"),
        (made_up_ids, "differ by more than rounding"),
        (coarse_weights, "differ by more than rounding"),
        (text_of_another_model_read_by_the_right_one, "are not what sampling gives"),
        (cut_short, "12 answers end too early"),
        (other_text, "do not make the texts of the answers"),
        (a_token_that_no_model_has, "do not make the texts"),
        (one_id_five_times, "names one of its likeliest tokens twice"),
        (no_chances, "log-probabilities that are none"),
        (too_much_chance, "log-probabilities that are none"),
    ],
)
def test_attacks_fail(spoil: Spoil, said: str) -> None:
    file = PrintedFile(SERIES, 7, OTHER_VERSION)
    spoil(file)
    found, reason = comparison(checked(file))
    assert found is CheckOutcome.FAILED, reason
    assert said in reason


@pytest.mark.parametrize(
    "change, said",
    [
        ({"sha256": None}, "no hash of fingerprints came"),
        ({"file": None}, "a hash of fingerprints came, and none followed"),
        ({"sha256": "0" * 64}, "their hash is not the one that was sent before"),
        ({"file": b"", "sha256": sha256(b"")}, "there are 0 and 0 bytes more"),
        ({"file": b"\1", "sha256": sha256(b"\1")}, "the file ends in its middle"),
    ],
)
def test_fingerprints_that_are_not_those_of_the_hash_fail(
    change: dict[str, Any], said: str
) -> None:
    file = PrintedFile(SERIES, 7, OTHER_VERSION)
    whole = {"limits": LIMITS, "sha256": sha256(file.prints), "file": file.prints}
    found = checked(file, printed=Printed(**{**whole, **change}))
    assert comparison(found)[0] is CheckOutcome.FAILED
    assert said in comparison(found)[1]


def test_equal_engines_are_compared_exactly_though_tolerance_is_allowed() -> None:
    file = PrintedFile(SERIES, 7, OTHER_VERSION)
    same = checked(file, trusted_runtime=RUNTIMES["runtime"])
    found, reason = comparison(same)
    assert found is CheckOutcome.FAILED
    assert "differs from the trusted one at character" in reason


@pytest.mark.parametrize(
    "change", [RUNTIMES, {"trusted_class": "practice-6"}], ids=["version", "class"]
)
def test_what_differs_is_judged_neither_way_until_the_settings_allow_it(
    change: dict[str, Any],
) -> None:
    """Not even equal answers pass: who says that it differs could fail at will."""
    lines = judge(evidence(**change))
    assert outcome(lines) is CheckOutcome.UNEXPLAINED
    (line,) = [one for one in lines if one.name == "comparison"]
    assert "answers cannot be compared exactly" in line.reason
    assert 'set [verification.tolerances."practice-12"]' in line.reason


def test_without_the_draws_a_token_must_be_among_those_that_sampling_keeps() -> None:
    """As where the trusted engine is vLLM."""
    logprobs = ((-0.1, -3.0, -4.0, -5.0, -6.0),)
    trusted = Fingerprint((UNKNOWN,), ((1, 2, 3, 4, 5),), logprobs, whole=True)
    for token, unlikely in ((1, 0), (2, 1), (9, 1)):
        one = Fingerprint((token,), trusted.ids, logprobs, whole=True)
        assert difference(one, trusted, 0.5, 0.8).unlikely == unlikely
    warm = Fingerprint((2,), trusted.ids, logprobs, whole=True)
    assert difference(warm, trusted, 5.0, 0.8).unlikely == 0


def test_limits_follow_from_what_was_measured() -> None:
    run = [PrintDifference(100, 2, 500, 5, 4.95), PrintDifference(100, 0, 500, 0, 0.0)]
    found = limits_from([run] * 5)
    assert found.tokens_one == pytest.approx(1.5 * 0.02)
    assert found.tokens_all == pytest.approx(1.2 * 0.01)
    assert found.ids_all == pytest.approx(1.2 * 0.005)
    assert found.logprobs_one == pytest.approx(1.5 * 0.01)
    assert found.logprobs_all == pytest.approx(1.2 * 4.95 / 995)
    equal = limits_from([[PrintDifference(10, 0, 50, 0, 0.0)]] * 5)
    assert equal.logprobs_all == LEAST_ERROR
    ranges = {name: high for name, (_, high) in ranges_of(found).items()}
    assert limits_in(ranges) == found
    assert limits_in({}) is None
    with pytest.raises(InvalidInputError, match="compare at least 5"):
        limits_from([run] * 4)
    with pytest.raises(InvalidInputError, match="it has another model"):
        limits_from([[PrintDifference(10, 10, 50, 50, 0.0)]] * 5)


def test_a_short_answer_may_differ_by_chance() -> None:
    run = [PrintDifference(100, 2, 500, 0, 4.95)]
    found = limits_from([run] * 5)
    assert one_is_right(PrintDifference(12, 2, 60, 1, 0.1), found)
    assert not one_is_right(PrintDifference(12, 3, 60, 1, 0.1), found)
    assert not one_is_right(PrintDifference(12, 2, 60, 2, 0.1), found)


def test_tokens_travel_packed() -> None:
    rows = [[1, 2, 300_000], [], [7]]
    assert unpack_tokens(pack_tokens(rows)) == rows
    for broken in ("no base64!", "AAAA"):
        with pytest.raises(ValueError):
            unpack_tokens(broken)
