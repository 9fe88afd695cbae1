"""A strategy whose answers are wrong is never best, and what differs by rounding alone
is not wrong.
"""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from gpuyard.studies.agreement import Difference, Key, StrategyAnswer, compare
from gpuyard.studies.answer_check import Correctness, RunAnswers, check_answers

PROMPTS = 40
RIGHT = (5, 6, 7, 8)


def answer(
    ids: tuple[int, ...], lead: float | None = None, other: int = 0
) -> StrategyAnswer:
    """An answer whose third token leads by `lead` nats over the token `other`."""
    text = " ".join(map(str, ids))
    if lead is None:
        return StrategyAnswer(text, ids)
    own = [-0.01] * len(ids)
    seconds = [-5.0] * len(ids)
    runners_up = [0] * len(ids)
    own[2] = -0.5
    seconds[2] = -0.5 - lead
    runners_up[2] = other
    return StrategyAnswer(text, ids, own, runners_up, seconds)


def answers(
    one: StrategyAnswer, other: StrategyAnswer | None = None, others: int = 0
) -> dict[Key, StrategyAnswer]:
    """So many prompts are answered with `other`, the rest with `one`."""
    return {
        ("2k", f"p{number:02}"): other if other and number < others else one
        for number in range(PROMPTS)
    }


def correctness(run: RunAnswers) -> Mapping[str, Correctness]:
    return {name: found.correctness for name, found in check_answers(run).items()}


CERTAIN = answer(RIGHT, 4.0, 9)
SAME_BUT_UNSURE = answer(RIGHT, 0.2, 9)
ROUNDED = answer((5, 6, 9, 8), 0.2, 7)
ELSEWHERE = answer((5, 6, 9, 8), 4.0, 7)
WRONG = answer((1, 1, 1, 1), 4.0)


def test_the_first_token_that_differs_tells_rounding_from_a_wrong_split() -> None:
    rounding = compare(answers(SAME_BUT_UNSURE), answers(ROUNDED), "bf16")
    assert (rounding.rounding, rounding.beyond) == (PROMPTS, 0)
    assert not rounding.is_wrong("bf16")
    # The same difference is far beyond what fp32 rounds.
    assert compare(answers(SAME_BUT_UNSURE), answers(ROUNDED), "fp32").is_wrong("fp32")
    wrong = compare(answers(CERTAIN), answers(ELSEWHERE), "bf16")
    assert wrong.is_wrong("bf16") and wrong.first is not None
    assert wrong.first.kind is Difference.BEYOND
    assert str(wrong.first) == (
        "prompt p00 of 2k, token 3: token 7 expected, token 9 given;"
        " log-probabilities of the reference -0.500 against -4.500;"
        " its own -0.500 against -4.500"
    )
    # The reference is nearly undecided, and the strategy is sure of the other token.
    assert compare(answers(SAME_BUT_UNSURE), answers(ELSEWHERE), "bf16").beyond


@pytest.mark.parametrize(
    ("precision", "others", "is_wrong"),
    [("fp32", 1, True), ("bf16", 2, False), ("bf16", 8, True)],
)
def test_how_many_answers_may_differ_beyond_rounding(
    precision: str, others: int, is_wrong: bool
) -> None:
    mixed = answers(CERTAIN, ELSEWHERE, others)
    comparison = compare(answers(CERTAIN), mixed, precision)
    assert comparison.is_wrong(precision) is is_wrong


def test_a_measured_noise_floor_lowers_what_is_asked() -> None:
    comparison = compare(answers(CERTAIN), answers(CERTAIN, ELSEWHERE, 8), "bf16")
    assert comparison.is_wrong("bf16") and not comparison.is_wrong("bf16", 0.8)
    nothing_right = compare(answers(CERTAIN), answers(WRONG), "bf16")
    assert nothing_right.is_wrong("bf16", 0.0)


def test_without_log_probabilities_half_of_the_answers_must_agree_in_bf16() -> None:
    plain = answer(RIGHT)
    other = answer((5, 6, 9, 8))
    for others, is_wrong in ((15, False), (35, True)):
        comparison = compare(answers(plain), answers(plain, other, others), "bf16")
        assert comparison.unexplained == others
        assert comparison.is_wrong("bf16") is is_wrong


def test_a_strategy_whose_every_answer_is_wrong_is_told_apart() -> None:
    run = RunAnswers(
        {"tp2": answers(WRONG), "pp2": answers(CERTAIN), "tp4": answers(CERTAIN)},
        "bf16",
    )
    # The smallest is not the reference when the others agree against it.
    assert correctness(run) == {
        "tp2": Correctness.WRONG,
        "pp2": Correctness.REFERENCE,
        "tp4": Correctness.RIGHT,
    }
    assert check_answers(run)["tp2"].reason.startswith(
        "40 of 40 answers differ from pp2 by more than rounding; first prompt p00"
    )


def test_what_tells_which_of_two_strategies_is_right() -> None:
    both = {"tp2": answers(WRONG), "pp2": answers(CERTAIN)}
    disputed = dict.fromkeys(both, Correctness.DISPUTED)
    assert correctness(RunAnswers(both, "bf16")) == disputed
    told = {"tp2": Correctness.WRONG, "pp2": Correctness.REFERENCE}
    assert correctness(RunAnswers(both, "bf16", unsplit=frozenset({"pp2"}))) == told
    right = dict.fromkeys(both["pp2"], CERTAIN.text)
    assert correctness(RunAnswers(both, "bf16", right=right)) == told


def test_a_reference_that_does_not_agree_with_itself_asks_less_of_others() -> None:
    noisy = {
        "tp1": answers(CERTAIN),
        "tp2": answers(CERTAIN, ELSEWHERE, 8),
    }
    unsplit = frozenset({"tp1"})
    strict = RunAnswers(noisy, "bf16", unsplit)
    assert correctness(strict)["tp2"] is Correctness.WRONG
    measured = RunAnswers(noisy, "bf16", unsplit, noise_floor={"tp1": 0.8})
    assert correctness(measured)["tp2"] is Correctness.RIGHT


def test_all_are_wrong_beside_a_baseline_that_they_contradict() -> None:
    run = RunAnswers(
        {"tp1": answers(WRONG), "tp2": answers(WRONG)},
        "bf16",
        baseline=answers(answer(RIGHT)),
    )
    found = check_answers(run)
    assert {one.correctness for one in found.values()} == {Correctness.WRONG}
    assert "differ from the baseline" in found["tp1"].reason


def test_a_baseline_that_does_not_repeat_itself_asks_less() -> None:
    some = answers(WRONG, CERTAIN, PROMPTS // 4)
    run = RunAnswers({"a": some, "b": some}, "bf16", baseline=answers(answer(RIGHT)))
    assert Correctness.WRONG in correctness(run).values()
    unsure = replace(run, baseline_floor=0.25)
    assert Correctness.WRONG not in correctness(unsure).values()


def test_a_baseline_may_stop_earlier() -> None:
    run = RunAnswers(
        {"tp1": answers(CERTAIN)}, "bf16", baseline=answers(answer(RIGHT[:2]))
    )
    assert correctness(run) == {"tp1": Correctness.REFERENCE}


def test_one_strategy_without_a_baseline_is_not_compared() -> None:
    run = RunAnswers({"tp1": answers(CERTAIN)}, "bf16")
    assert correctness(run) == {"tp1": Correctness.NOT_COMPARED}
    assert check_answers(RunAnswers({}, "bf16")) == {}


def test_rounded_weights_are_told_apart_and_are_no_reference() -> None:
    right = answers(CERTAIN)
    run = RunAnswers(
        {"rounded": answers(WRONG, CERTAIN, 10), "a": right, "b": right},
        "bf16",
        unsplit=frozenset({"rounded"}),
        quantized=frozenset({"rounded"}),
    )
    assert correctness(run) == {
        "a": Correctness.REFERENCE,
        "b": Correctness.RIGHT,
        "rounded": Correctness.ROUNDED,
    }
    found = check_answers(run)["rounded"]
    assert not found.correctness.can_be_best
    assert found.reason == (
        "its weights are rounded: 10 of 40 answers agree with a; set"
        " report.rank_quantized to rank it nevertheless"
    )
    alone = RunAnswers({"rounded": right}, "bf16", quantized=frozenset({"rounded"}))
    assert "there is no reference" in check_answers(alone)["rounded"].reason


def test_answers_that_were_cut_are_wrong() -> None:
    whole = answers(replace(CERTAIN, finish_reason="stop"))
    half = StrategyAnswer("5 6", RIGHT[:2], finish_reason="length")
    cut = compare(whole, answers(CERTAIN, half, 15), "bf16")
    assert cut.beyond == 15 and cut.is_wrong("bf16")
    # It says that the model had ended, but the model was sure of what came next.
    said = compare(
        whole, answers(CERTAIN, replace(half, finish_reason="stop"), 15), "bf16"
    )
    assert said.beyond == 15 and said.is_wrong("bf16")


def test_an_engine_may_leave_out_the_token_that_ends_an_answer() -> None:
    # The token 8 ends the text, so it is not in it.
    whole = answers(replace(CERTAIN, text="5 6 7", finish_reason="stop"))
    shorter = answers(StrategyAnswer("5 6 7", RIGHT[:3], finish_reason="stop"))
    assert compare(whole, shorter, "bf16").same == PROMPTS
    cut = answers(StrategyAnswer("5 6 7", RIGHT[:3], finish_reason="length"))
    assert compare(whole, cut, "bf16").beyond == PROMPTS


def test_a_strategy_that_says_nothing_is_wrong_where_one_token_is_the_answer() -> None:
    said = answers(StrategyAnswer("B", (33,), finish_reason="stop"))
    silent = answers(StrategyAnswer("", (), finish_reason="stop"))
    assert compare(said, silent, "bf16").same == 0
    run = RunAnswers({"tp1": said, "tp2": silent}, "bf16", frozenset({"tp1"}))
    assert correctness(run)["tp2"] is Correctness.WRONG


def test_fewer_figures_than_tokens_tell_nothing() -> None:
    torn = replace(CERTAIN, runner_up_ids=(0,))
    assert compare(answers(torn), answers(ELSEWHERE), "bf16").beyond == PROMPTS
    nothing = replace(ELSEWHERE, logprobs=())
    assert compare(answers(torn), answers(nothing), "bf16").unexplained == PROMPTS
