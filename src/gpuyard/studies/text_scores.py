"""Measure how similar two texts are, and the confidence interval of a mean."""

# sacrebleu has few types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import numpy as np

from gpuyard.domain.exact import first_divergence

RESAMPLES = 2000
_NORMAL_FROM = 10_000
_REMEMBERED = 400
_WORD = re.compile(r"[぀-ヿ㐀-鿿가-힯]|[^\W_]+")


@dataclass(frozen=True, slots=True)
class Score:
    """The comparison of an answer with its reference.

    `token_agreement` is the share of equal positions, of the longer one's length;
    `first_divergence` is the first position that differs, from 0, or None. Both count
    in `unit`: tokens, words or characters. The other scores are from 0 to 1:
    `edit_similarity` is 1 − Levenshtein's distance / the longer text's characters; BLEU
    and chrF are sacrebleu's sentence scores / 100; `rouge_l` is the F1 of the longest
    common subsequence of words, as in rouge-score.
    """

    exact_match: float
    token_agreement: float
    first_divergence: int | None
    unit: str
    edit_similarity: float
    bleu: float
    chrf: float
    rouge_l: float


def score(
    reference: str,
    candidate: str,
    reference_ids: Sequence[int] | None = None,
    candidate_ids: Sequence[int] | None = None,
) -> Score:
    """Compare by token ids where both have them, else by words.

    A reference without blanks is compared by characters.
    """
    unit, one, other = _units(reference, candidate, reference_ids, candidate_ids)
    agreement = agree(one, other)
    divergence = first_divergence(one, other)
    if reference == candidate:
        return Score(1.0, agreement, divergence, unit, 1.0, 1.0, 1.0, 1.0)
    from rapidfuzz.distance import Levenshtein

    edit = Levenshtein.normalized_similarity(reference, candidate)
    if not reference.strip() or not candidate.strip():
        return Score(0.0, agreement, divergence, unit, edit, 0.0, 0.0, 0.0)
    bleu, chrf = _sacrebleu("char" if _is_unspaced(reference) else "13a")
    return Score(
        0.0,
        agreement,
        divergence,
        unit,
        edit,
        bleu.sentence_score(candidate, [reference]).score / 100,
        chrf.sentence_score(candidate, [reference]).score / 100,
        rouge_l(reference, candidate),
    )


def agree(reference: Sequence[object], candidate: Sequence[object]) -> float:
    """Return the share of equal positions, of the longer one's; 1 if both are empty."""
    if reference == candidate:
        return 1.0
    longest = max(len(reference), len(candidate))
    same = sum(one == other for one, other in zip(reference, candidate, strict=False))
    return same / longest if longest else 1.0


def rouge_l(reference: str, candidate: str) -> float:
    """Return the F1 score of the longest common subsequence of words.

    Precision is its share of the candidate's words, recall of the reference's. Words
    are letters and digits in lower case; each Chinese, Japanese or Korean character is
    a word. rapidfuzz finds the subsequence a thousand times faster than rouge-score.
    """
    from rapidfuzz.distance import LCSseq

    wanted, found = (_WORD.findall(text.lower()) for text in (reference, candidate))
    common = LCSseq.similarity(wanted, found)
    return 2 * common / (len(wanted) + len(found)) if common else 0.0


def interval(values: np.ndarray, seed: int = 0) -> tuple[float, float] | None:
    """Return the 95 % interval of the mean, or None with fewer than two values.

    It is the percentiles 2.5 and 97.5 of the means of RESAMPLES samples, drawn with
    replacement. From ten thousand values on, the means are taken as normally
    distributed.
    """
    count = len(values)
    if count < 2:
        return None
    if count >= _NORMAL_FROM:
        mean = float(values.mean())
        reach = 1.959964 * float(values.std(ddof=1)) / math.sqrt(count)
        return mean - reach, mean + reach
    if count <= _REMEMBERED:
        means = _draws(count, seed) @ values / count
    else:
        means = _drawn_means(values, seed)
    low, high = np.percentile(means, [2.5, 97.5])
    return float(low), float(high)


@lru_cache(maxsize=16)
def _draws(count: int, seed: int) -> np.ndarray:
    """Return how often each of `count` values is drawn, a row for each sample.

    Most intervals of a report are of equally many values, and draw the same.
    """
    dice = np.random.default_rng(seed)
    places = dice.integers(0, count, (RESAMPLES, count))
    first = np.arange(RESAMPLES)[:, np.newaxis] * count
    times = np.bincount((places + first).ravel(), minlength=RESAMPLES * count)
    return times.reshape(RESAMPLES, count).astype(float)


def _drawn_means(values: np.ndarray, seed: int) -> np.ndarray:
    """Return the mean of each sample, drawn in parts that fit the memory."""
    dice = np.random.default_rng(seed)
    count = len(values)
    at_once = max(1, 4_000_000 // count)
    means = [
        values[dice.integers(0, count, (min(at_once, RESAMPLES - done), count))].mean(
            axis=1
        )
        for done in range(0, RESAMPLES, at_once)
    ]
    return np.concatenate(means)


def _units(
    reference: str,
    candidate: str,
    reference_ids: Sequence[int] | None,
    candidate_ids: Sequence[int] | None,
) -> tuple[str, Sequence[object], Sequence[object]]:
    if reference_ids is not None and candidate_ids is not None:
        return "tokens", list(reference_ids), list(candidate_ids)
    if _is_unspaced(reference):
        return "characters", reference, candidate
    return "words", reference.split(), candidate.split()


def _is_unspaced(text: str) -> bool:
    return len(text.split()) < 2


@cache
def _sacrebleu(tokenizer: str) -> tuple[Any, Any]:
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    # Of a short answer the orders that it has count, else none of fewer than four words
    # could ever score.
    return BLEU(effective_order=True, tokenize=tokenizer), CHRF()
