"""Answers judged by fingerprints: honest ones of another version pass, attacks fail."""

import dataclasses
from collections.abc import Callable
from random import Random
from typing import Any

import msgspec
import pytest

from gpuyard.verification.fingerprints import (
    Fingerprint,
    PrintDifference,
    Sampling,
    difference,
)
from gpuyard.verification.protocol import SAMPLING
from gpuyard.verification.solver.engines.fingerprints import (
    HEADER,
    TOKEN,
    TOP,
    UNKNOWN,
    pack_tokens,
    unpack_tokens,
)
from gpuyard.verification.solver.messages import canonical
from gpuyard.verification.tolerance import Printed, all_are_right, contradicts_itself
from gpuyard.verification.tolerance_limits import limits_from
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
END = 24
"""The token that ends an answer of the mock, after those of its words."""
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
        answer.prints[-1].token = END
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


def ended_by_itself(file: PrintedFile) -> None:
    """Each answer ends after seven words, with the token that ends answers."""
    for answer in file.answers:
        answer.prints[7].token = END
        del answer.prints[8:]
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
        (ended_by_itself, "100.00% of the answers end where sampling does not"),
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
    whole: dict[str, Any] = {
        "limits": LIMITS,
        "sha256": sha256(file.prints),
        "file": file.prints,
    }
    found = checked(file, printed=Printed(**{**whole, **change}))
    assert comparison(found)[0] is CheckOutcome.FAILED
    assert said in comparison(found)[1]


def test_equal_engines_are_compared_exactly_though_tolerance_is_allowed() -> None:
    file = PrintedFile(SERIES, 7, OTHER_VERSION)
    same = checked(file, trusted_runtime=RUNTIMES["runtime"])
    found, reason = comparison(same)
    assert found is CheckOutcome.FAILED
    assert "differs from the trusted one at character" in reason


def test_what_differs_is_judged_neither_way_until_the_settings_allow_it() -> None:
    """Not even equal answers pass: who says that it differs could fail at will."""
    lines = judge(evidence(**RUNTIMES))
    assert outcome(lines) is CheckOutcome.OTHER_ENGINE
    (line,) = [one for one in lines if one.name == "comparison"]
    assert "answers cannot be compared exactly" in line.reason
    assert 'set [verification.tolerances."practice-12"]' in line.reason
    # Nobody but the settings says of what class the trusted executor is.
    other_class = judge(evidence(trusted_class="practice-6"))
    assert outcome(other_class) is CheckOutcome.BLAMELESS


@pytest.mark.parametrize(
    ("said", "found"),
    [("mock", CheckOutcome.BLAMELESS), ("mock 2", CheckOutcome.OTHER_ENGINE)],
)
def test_a_trusted_engine_that_changed_blames_nobody_who_stayed_as_it_was(
    said: str, found: CheckOutcome
) -> None:
    lines = judge(
        evidence(
            runtime={"engine": said},
            trusted_runtime={"engine": "mock 3"},
            accepted_runtime={"engine": "mock"},
        )
    )
    assert outcome(lines) is found


def test_limits_that_were_measured_with_another_trusted_engine_fail_nobody() -> None:
    file = PrintedFile(SERIES, 7, OTHER_VERSION)
    another_model(file)
    changed = {"accepted_runtime": {"engine": "mock 1"}}
    found, reason = comparison(checked(file, **changed))
    assert found is CheckOutcome.BLAMELESS
    assert "its engine was 'mock 1' when it was accepted and is 'mock' now" in reason


WARM = Sampling(5.0, 0.8, 4)
COLD = Sampling(0.5, 0.8, 4)
IDS = (1, 2, 3, 4, 5)


def place_of_vllm(token: int, logprobs: tuple[float, ...]) -> tuple[Any, Any]:
    """One token, as the executor has it and as a trusted engine without draws does."""
    ours = Fingerprint((token,), (IDS,), (logprobs,), whole=True)
    trusted = Fingerprint((UNKNOWN,), (IDS,), (logprobs,), whole=True)
    return ours, trusted


def test_without_the_draws_a_token_must_be_among_those_that_sampling_keeps() -> None:
    """As where the trusted engine is vLLM. An end that is not the likeliest counts."""
    peaked = (-0.1, -3.0, -4.0, -5.0, -6.0)
    for token, unlikely, rare in ((1, 0, 0), (2, 1, 1), (9, 1, 1)):
        found = difference(*place_of_vllm(token, peaked), COLD)
        assert (found.unlikely, found.false_ends, found.rare_ends) == (
            unlikely,
            unlikely,
            rare,
        )
    warm = difference(*place_of_vllm(2, peaked), WARM)
    assert (warm.unlikely, warm.false_ends, warm.rare_ends) == (0, 0, 1)
    # An answer of all tokens that it may have has not ended.
    full = difference(*place_of_vllm(9, peaked), Sampling(0.5, 0.8, 1))
    assert (full.false_ends, full.rare_ends) == (0, 0)


def without_draws(file: PrintedFile, *, accepts: bool) -> Evidence:
    """As if the trusted engine could not tell what the seed gives."""
    found = checked(file)
    assert found.printed is not None
    trusted = bytearray(found.printed.trusted or b"")
    place = 0
    for answer in file.answers:
        place += HEADER.size
        for _ in answer.prints:
            trusted[place : place + 4] = UNKNOWN.to_bytes(4, "little")
            place += TOKEN.size
    printed = msgspec.structs.replace(
        found.printed,
        trusted=bytes(trusted),
        accepts_unknown_draws=accepts,
        limits=msgspec.structs.replace(LIMITS, **ANY_TOKEN),
    )
    return msgspec.structs.replace(found, printed=printed)


# The likeliest tokens of the mock are not those that it draws.
ANY_TOKEN = {
    "tokens_one": 1.0,
    "tokens_all": 1.0,
    "false_ends_all": 1.0,
    "rare_ends_all": 1.0,
}


@pytest.mark.parametrize(
    ("accepts", "trusted_class", "found"),
    [
        (False, None, CheckOutcome.OTHER_ENGINE),
        (False, "practice-6", CheckOutcome.UNJUDGED),
        (True, None, CheckOutcome.PASSED),
    ],
)
def test_where_the_draws_are_not_known_nobody_passes_unless_the_settings_accept_it(
    accepts: bool, trusted_class: str | None, found: CheckOutcome
) -> None:
    """And it counts, unless the class of the trusted executor is the reason: else who
    says that its engine is another would never be judged, and lose nothing.
    """
    checked = without_draws(PrintedFile(SERIES, 7, OTHER_VERSION), accepts=accepts)
    lines = judge(msgspec.structs.replace(checked, trusted_class=trusted_class))
    assert outcome(lines) is found, lines
    (line,) = [one for one in lines if one.name == "draws"]
    assert "cannot tell which tokens the seed gives" in line.reason
    assert ("accept_unknown_draws = true" in line.reason) is not accepts


def test_only_the_ends_of_answers_show_that_all_were_cut() -> None:
    file = PrintedFile(SERIES, 7, OTHER_VERSION)
    ended_by_itself(file)
    found = checked(file)
    assert found.printed is not None
    no_limit = msgspec.structs.replace(LIMITS, false_ends_all=1.0)
    printed = msgspec.structs.replace(found.printed, limits=no_limit)
    assert comparison(checked(file, printed=printed))[0] is CheckOutcome.PASSED


def test_who_cuts_each_answer_where_its_end_is_only_possible_is_found() -> None:
    """A trusted engine without draws only knows how often honest answers end so."""
    shares = {**ANY_TOKEN, "false_ends_all": 0.01, "rare_ends_all": 0.2}
    limits = msgspec.structs.replace(LIMITS, **shares)
    honest = PrintDifference(2400, 0, 12000, 0, 1.0, answers=240, rare_ends=50)
    cutter = dataclasses.replace(honest, rare_ends=240)
    assert all_are_right(honest, limits)
    assert not all_are_right(cutter, limits)


def test_a_trusted_executor_may_follow_differently_by_rounding_only() -> None:
    file = PrintedFile(SERIES, 7, OTHER_VERSION)
    first = file.followed().fingerprints

    def contradicts(engine: dict[str, Any]) -> bool:
        again = file.followed(engine).fingerprints
        assert again != first
        return contradicts_itself(first, again, LIMITS, len(SERIES), 256)

    assert not contradicts({"version": "3", "rounding": 0.005})
    assert contradicts({"model": "another"})


def test_a_token_that_no_model_has_is_no_contradiction_of_the_trusted_executor() -> (
    None
):
    """Otherwise who sends one would be blameless wherever a GPU rounds differently."""
    file = PrintedFile(SERIES, 7, OTHER_VERSION)
    a_token_that_no_model_has(file)
    first, again = (
        file.followed({"version": version, "rounding": 0.005}).fingerprints
        for version in ("3", "4")
    )
    assert first != again
    assert not contradicts_itself(first, again, LIMITS, len(SERIES), 256)
    assert contradicts_itself(first, b"", LIMITS, len(SERIES), 256)


def test_tokens_travel_packed() -> None:
    rows = [[1, 2, 300_000], [], [7]]
    assert unpack_tokens(pack_tokens(rows)) == rows
    for broken in ("no base64!", "AAAA"):
        with pytest.raises(ValueError):
            unpack_tokens(broken)
