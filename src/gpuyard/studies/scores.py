"""How alike two texts are, from 0 (nothing) to 1 (the same), and how sure a mean of such figures is."""

# sacrebleu has few types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from gpuyard.domain.exact import first_divergence

RESAMPLES = 2000
_NORMAL_FROM = 10_000
_WORD = re.compile(r"[぀-ヿ㐀-鿿가-힯]|[^\W_]+")


@dataclass(frozen=True, slots=True)
class Score:
    """An answer beside its reference.

    `token_agreement` is the share of places that hold the same, of the longer one's; `first_divergence` counts from 0
    and is None where they are the same. `unit` is what both count: tokens, words or characters. The others are from 0
    to 1: `edit_similarity` is 1 − Levenshtein's distance / the longer text's characters; BLEU and chrF are sacrebleu's
    for one sentence / 100; `rouge_l` is the F1 of the longest common subsequence of words, as rouge-score has it.
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
    """Compare by token ids where both have them, else by words, else (a reference without blanks) by characters."""
    unit, one, other = _units(reference, candidate, reference_ids, candidate_ids)
    agreement, divergence = agree(one, other), first_divergence(one, other)
    if reference == candidate:
        return Score(1.0, agreement, divergence, unit, 1.0, 1.0, 1.0, 1.0)
    from rapidfuzz.distance import Levenshtein

    edit = Levenshtein.normalized_similarity(reference, candidate)
    if not reference.strip() or not candidate.strip():
        return Score(0.0, agreement, divergence, unit, edit, 0.0, 0.0, 0.0)
    bleu, chrf = _sacrebleu("char" if _is_unspaced(reference) else "13a")
    return Score(0.0, agreement, divergence, unit, edit, bleu.sentence_score(candidate, [reference]).score / 100,
                 chrf.sentence_score(candidate, [reference]).score / 100, rouge_l(reference, candidate))  # fmt: skip


def agree(reference: Sequence[object], candidate: Sequence[object]) -> float:
    """The share of places at which both hold the same, of the longer one's; 1 where both are empty."""
    longest = max(len(reference), len(candidate))
    same = sum(one == other for one, other in zip(reference, candidate, strict=False))
    return same / longest if longest else 1.0


def rouge_l(reference: str, candidate: str) -> float:
    """F1 of the longest common subsequence: precision is its share of the candidate's words, recall of the reference's.

    Words are letters and digits in lower case, each character of Chinese, Japanese and Korean one of its own. The
    subsequence is found by rapidfuzz, which takes a thousandth of the time of rouge-score's own.
    """
    from rapidfuzz.distance import LCSseq

    wanted, found = (_WORD.findall(text.lower()) for text in (reference, candidate))
    common = LCSseq.similarity(wanted, found)
    return 2 * common / (len(wanted) + len(found)) if common else 0.0


def interval(values: np.ndarray, seed: int = 0) -> tuple[float, float] | None:
    """Where the mean lies with 95 %: the percentiles 2.5 and 97.5 of the means of RESAMPLES samples, drawn with
    replacement. None with fewer than two values. With ten thousand and more the means are normal, and are not drawn.
    """
    count = len(values)
    if count < 2:
        return None
    if count >= _NORMAL_FROM:
        mean, reach = float(values.mean()), 1.959964 * float(values.std(ddof=1)) / math.sqrt(count)
        return mean - reach, mean + reach
    dice = np.random.default_rng(seed)
    at_once = max(1, 4_000_000 // count)
    means = [values[dice.integers(0, count, (min(at_once, RESAMPLES - done), count))].mean(axis=1)
             for done in range(0, RESAMPLES, at_once)]  # fmt: skip
    low, high = np.percentile(np.concatenate(means), [2.5, 97.5])
    return float(low), float(high)


def _units(
    reference: str, candidate: str, reference_ids: Sequence[int] | None, candidate_ids: Sequence[int] | None
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

    # Of a short answer the orders that it has count, else none of fewer than four words could ever score.
    return BLEU(effective_order=True, tokenize=tokenizer), CHRF()
