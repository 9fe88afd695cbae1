"""Scores of answers, worked out by hand, and means with their intervals."""

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuyard.domain.exact import first_divergence
from gpuyard.studies.correctness import CorrectnessEvaluator
from gpuyard.studies.text_scores import interval, rouge_l, score
from tests.support.examples import examples


@pytest.mark.parametrize(
    ("reference", "candidate", "place"),
    [
        ("abc", "abc", None),
        ("abc", "abd", 2),
        ("abc", "ab", 2),
        ("", "a", 0),
        ([], [], None),
        ([1, 2], [1, 2, 3], 2),
        (b"ab", b"xb", 0),
        ([1, 2], (1, 2), None),
        ([None], [], 0),
    ],
)
def test_where_two_outputs_part(
    reference: Any, candidate: Any, place: int | None
) -> None:
    assert first_divergence(reference, candidate) == place


@given(st.lists(st.integers(0, 3)), st.lists(st.integers(0, 3)))
def test_before_the_divergence_all_is_the_same(
    one: list[int], other: list[int]
) -> None:
    place = first_divergence(one, other)
    assert (place is None) == (one == other)
    if place is not None:
        assert (
            one[:place] == other[:place]
            and one[place : place + 1] != other[place : place + 1]
        )


def test_the_same_answer() -> None:
    found = score("a b c", "a b c", [1, 2], [1, 2])
    assert (
        found.exact_match,
        found.token_agreement,
        found.first_divergence,
        found.unit,
    ) == (1, 1, None, "tokens")
    assert (found.edit_similarity, found.bleu, found.chrf, found.rouge_l) == (
        1,
        1,
        1,
        1,
    )


def test_another_answer_by_words() -> None:
    # Three of four words in place; two of 18 letters changed; of the words three are
    # common in order, so F1 = 2·3/8.
    found = score("the cat sat there", "the cow sat there")
    assert (
        found.exact_match,
        found.token_agreement,
        found.first_divergence,
        found.unit,
    ) == (0, 0.75, 1, "words")
    assert found.edit_similarity == pytest.approx(1 - 2 / 17)
    assert found.rouge_l == pytest.approx(0.75)
    # 3/4 words; pairs 1/3; no triple of two and no four of one, which count as 1/(2·2)
    # and 1/(4·1).
    assert found.bleu == pytest.approx((3 / 4 * 1 / 3 * 1 / 4 * 1 / 4) ** (1 / 4))
    assert 0 < found.chrf < 1


def test_by_tokens_where_both_have_them() -> None:
    found = score("one two", "one 2", [5, 6, 7], [5, 9])
    assert (found.unit, found.token_agreement, found.first_divergence) == (
        "tokens",
        pytest.approx(1 / 3),
        1,
    )
    assert score("one two", "one 2", None, [5, 9]).unit == "words"


def test_without_blanks_characters_count() -> None:
    found = score("你好世界", "你好地球")
    assert (found.unit, found.token_agreement, found.first_divergence) == (
        "characters",
        0.5,
        2,
    )
    assert found.rouge_l == 0.5
    assert found.bleu > 0


@pytest.mark.parametrize(
    ("reference", "candidate"), [("a b", ""), ("", "a b"), ("a b", "  ")]
)
def test_nothing_beside_something(reference: str, candidate: str) -> None:
    found = score(reference, candidate)
    assert (
        found.exact_match,
        found.token_agreement,
        found.bleu,
        found.chrf,
        found.rouge_l,
    ) == (0, 0, 0, 0, 0)


def test_nothing_beside_nothing() -> None:
    assert score("", "").token_agreement == 1


@settings(max_examples=examples(50))
@given(st.text("ab c", max_size=60), st.text("ab c", max_size=60))
def test_rouge_l_is_that_of_rouge_score(reference: str, candidate: str) -> None:
    from rouge_score import rouge_scorer  # imports much more than all other tests here

    theirs = (
        rouge_scorer.RougeScorer(["rougeL"])
        .score(reference, candidate)["rougeL"]
        .fmeasure
    )
    assert rouge_l(reference, candidate) == pytest.approx(theirs)


def test_an_interval_holds_the_mean_and_is_drawn_the_same_each_time() -> None:
    # Of 100 values, half 0 and half 1, the mean's deviation is 0.05: the interval is
    # 0.5 ± 0.098.
    values = np.tile([0.0, 1.0], 50)
    low, high = interval(values) or (math.nan, math.nan)
    assert (low, high) == interval(values)
    assert low == pytest.approx(0.402, abs=0.012) and high == pytest.approx(
        0.598, abs=0.012
    )
    assert interval(np.ones(5)) == (1, 1)
    assert interval(np.ones(1)) is None


def test_many_values_need_no_draws() -> None:
    values = np.tile([0.0, 1.0], 20_000)
    assert interval(values) == pytest.approx(
        (0.5 - 1.96 * 0.5 / 200, 0.5 + 1.96 * 0.5 / 200), abs=1e-4
    )


def test_the_interval_covers_the_true_mean_as_often_as_it_says() -> None:
    dice = np.random.default_rng(7)
    samples = dice.binomial(1, 0.7, (300, 40)).astype(float)
    held = [
        low <= 0.7 <= high
        for low, high in (interval(sample) or (0, 0) for sample in samples)
    ]
    assert 0.88 < np.mean(held) < 0.99


def results(**answers: list[str | None]) -> pd.DataFrame:
    """Answers by strategy, to the prompts p01, p02, …; the baseline says `yes it
    is`.
    """
    return pd.DataFrame(
        [
            {
                "prompt_id": f"p{number:02}",
                "variant": "2k",
                "strategy_id": strategy_id,
                "cluster_completion": answer,
                "status": "missing" if answer is None else "ok",
                "local_completion": "yes it is",
                "token_ids": (
                    None
                    if answer is None
                    else np.array([ord(letter) for letter in answer])
                ),
            }
            for strategy_id, given in answers.items()
            for number, answer in enumerate(given, 1)
        ]
    )


def test_each_answer_beside_the_baseline_and_its_peer() -> None:
    evaluator = CorrectnessEvaluator()
    scores = evaluator.evaluate(
        results(
            one=["yes it is", "yes it was"],
            two=["yes it is", "yes it is"],
            three=[None, "no"],
        )
    )
    assert set(scores.reference) == {"baseline"} and evaluator.warnings == ()
    assert scores.exact_match.fillna(-1).tolist() == [1, 0, 1, 1, -1, 0]
    # The peer is the first with most answers, and is not compared with itself.
    assert scores.peer_exact.fillna(-1).tolist() == [-1, -1, 1, 0, -1, 0]
    assert scores.peer_divergence.fillna(-1).tolist() == [-1, -1, -1, 7, -1, 0]
    assert set(scores.peer_unit.dropna()) == {"tokens"}
    summary = evaluator.summarize(scores).set_index(["strategy_id", "variant"])
    one = summary.loc[("one", "all")]
    three = summary.loc[("three", "all")]
    assert (one.n, one.missing, one.diverged, one.exact_match) == (2, 0, 1, 0.5)
    assert one.token_agreement == pytest.approx((1 + 2 / 3) / 2)
    assert (three.n, three.missing, three.exact_match) == (1, 1, 0)
    assert math.isnan(three.exact_match_low)
    assert len(summary) == 6


def test_the_truth_goes_before_the_baseline() -> None:
    evaluator = CorrectnessEvaluator({("p01", "2k"): "no", "p02": "no"})  # type: ignore[dict-item]
    scores = evaluator.evaluate(results(one=["no", "no", "yes it is"]))
    assert scores.reference.tolist() == ["truth", "truth", "baseline"]
    assert scores.exact_match.tolist() == [1, 1, 1]
    assert "their means mix both" in evaluator.warnings[0]


def test_without_any_reference_only_strategies_are_compared() -> None:
    evaluator = CorrectnessEvaluator(peer="two")
    scores = evaluator.evaluate(
        results(one=["a"], two=["b"]).assign(local_completion=None)
    )
    assert set(scores.reference) == {"none"}
    assert scores.exact_match.isna().all() and scores.peer_exact.tolist()[0] == 0
    assert "compared only with other strategies" in evaluator.warnings[0]


def test_other_models_are_warned_of() -> None:
    frame = results(one=["a"])
    evaluator = CorrectnessEvaluator(
        baseline_model="meta-llama/Llama-3-70B", study_model="models/llama-3-8b"
    )
    evaluator.evaluate(frame)
    assert "compare models" in evaluator.warnings[0]
    same = CorrectnessEvaluator(
        baseline_model="meta-llama/Llama-3-8B", study_model="/models/llama-3-8b/"
    )
    same.evaluate(frame)
    assert same.warnings == ()


def test_a_baseline_that_was_a_chat_is_warned_of() -> None:
    evaluator = CorrectnessEvaluator()
    evaluator.evaluate(results(one=["a"]).assign(local_api="chat"))
    assert evaluator.warnings[0].startswith("The baseline was asked as a chat")
    evaluator.evaluate(results(one=["a"]).assign(local_api="completions"))
    assert evaluator.warnings == ()
    evaluator.evaluate(
        results(one=["a"]).assign(local_api="chat", local_completion=None)
    )
    assert not any("chat" in warning for warning in evaluator.warnings)


def test_embeddings_that_cannot_be_had_cost_a_warning_only() -> None:
    evaluator = CorrectnessEvaluator(embedding_model="no/such/folder")
    scores = evaluator.evaluate(results(one=["a"]))
    assert scores.embedding_similarity.isna().all()
    assert "Embeddings are left out" in evaluator.warnings[0]


def test_no_results_at_all() -> None:
    evaluator = CorrectnessEvaluator()
    scores = evaluator.evaluate(results(one=["a"]).iloc[:0])
    assert scores.empty and evaluator.summarize(scores).empty
