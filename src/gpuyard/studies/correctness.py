"""Score each strategy's answers against the truth, the baseline and one another."""

# pandas has no types, and sentence-transformers may not be there.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false, reportArgumentType=false
# pyright: reportCallIssue=false, reportAttributeAccessIssue=false
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from importlib import import_module
from typing import Any, cast

import numpy as np
import pandas as pd

from gpuyard.domain.exact import first_divergence
from gpuyard.studies.study import plain_name
from gpuyard.studies.text_scores import Score, agree, interval, score

METRICS = (
    "exact_match",
    "token_agreement",
    "edit_similarity",
    "bleu",
    "chrf",
    "rouge_l",
    "embedding_similarity",
)
PEER_METRICS = ("peer_exact", "peer_agreement")
ALL = "all"
_KEY = ["strategy_id", "variant", "prompt_id"]
_SCORED = (*(field.name for field in fields(Score)), "embedding_similarity")
_PEER = ("peer", "peer_exact", "peer_agreement", "peer_divergence", "peer_unit")

Truth = Mapping[str, str] | Mapping[tuple[str, str], str]


class CorrectnessEvaluator:
    """Scores a run's results, and collects in `warnings` what a reader must know."""

    def __init__(
        self,
        truth: Truth | None = None,
        *,
        baseline_model: str | None = None,
        study_model: str | None = None,
        peer: str | None = None,
        embedding_model: str | None = None,
        seed: int = 0,
    ) -> None:
        """Keep what the answers are compared with.

        `truth` maps prompt_id or (prompt_id, variant) to the right text. `peer` is the
        strategy that the others are compared with; by default it is the first of those
        with most answers. `embedding_model` is a folder for sentence-transformers.
        """
        self._truth: Mapping[Any, str] = truth or {}
        self._models = baseline_model, study_model
        self._peer = peer
        self._embedding_model = embedding_model
        self._seed = seed
        self.warnings: tuple[str, ...] = ()
        self._scores: dict[Any, dict[str, Any]] = {}

    def prefer_peers(self, strategies: Sequence[str]) -> None:
        """Use the first of these strategies as peer, unless a peer was named."""
        if self._peer is None and strategies:
            self._peer = strategies[0]

    @property
    def is_same_model(self) -> bool:
        """Whether the baseline is of the study's model, as far as names tell."""
        baseline, study = self._models
        if not baseline or not study:
            return True
        return plain_name(baseline) == plain_name(study)

    def right_text(self, row: Mapping[str, Any]) -> str | None:
        """Return the text that a row's answer is compared with, if there is one."""
        return self._reference(row)[1]

    def evaluate(self, results: pd.DataFrame) -> pd.DataFrame:
        """Return one row of scores per row of the results.

        A row has its key, its status, `reference` (truth, baseline or none), the fields
        of `Score`, `embedding_similarity`, and the comparison with the peer:
        `peer_exact`, `peer_agreement` and `peer_divergence`, counted in `peer_unit`.
        Unknown values are null.
        """
        peer = self._peer or _first_peer(results)
        answers = (
            {} if peer is None else _answers(results[results["strategy_id"] == peer])
        )
        columns = [
            "strategy_id",
            "variant",
            "prompt_id",
            "status",
            "reference",
            *_SCORED,
            *_PEER,
        ]
        rows = [self._row(row, answers, peer) for row in _records(results)]
        scores = pd.DataFrame(rows, columns=pd.Index(columns))
        numbers = (*METRICS, *PEER_METRICS, "first_divergence", "peer_divergence")
        scores = scores.astype(dict.fromkeys(numbers, float))
        asked_as_chat = "local_api" in results and bool(
            (results["local_api"] == "chat").any()
        )
        self.warnings = tuple(self._find_warnings(scores, asked_as_chat))
        self._embed(results, scores)
        return scores

    def score_prompt(
        self,
        reference: str,
        candidate: str,
        reference_ids: Sequence[int] | None = None,
        candidate_ids: Sequence[int] | None = None,
    ) -> Score:
        """One answer beside one reference."""
        return score(reference, candidate, reference_ids, candidate_ids)

    def summarize(self, scores: pd.DataFrame) -> pd.DataFrame:
        """Return one row per strategy and variant, and one for `all` variants.

        A row has `n` answers, `missing` ones, those that `diverged` from the reference,
        and for each metric its mean and its 95 % interval, `<metric>_low` and
        `<metric>_high` (see `text_scores.interval`).
        """
        figures = {
            name: scores[name].to_numpy(float) for name in (*METRICS, *PEER_METRICS)
        }
        is_ok = (scores["status"] == "ok").to_numpy(bool)
        variants = scores["variant"].to_numpy(object)
        rows: list[dict[str, Any]] = []
        for strategy_id, places in _places(scores["strategy_id"]):
            mine = variants[places]
            parts = [(ALL, places)]
            parts += [(one, places[mine == one]) for one in dict.fromkeys(mine)]
            for variant, part in parts:
                ok = part[is_ok[part]]
                counts = {"n": len(ok), "missing": len(part) - len(ok)}
                found = {name: values[ok] for name, values in figures.items()}
                key = {"strategy_id": strategy_id, "variant": variant}
                rows.append(key | counts | self._means(found))
        return pd.DataFrame(rows)

    def _row(
        self, row: dict[str, Any], peers: Mapping[Any, dict[str, Any]], peer: str | None
    ) -> dict[str, Any]:
        found = {name: row[name] for name in (*_KEY, "status")}
        name, reference, reference_ids = self._reference(row)
        answer = row.get("cluster_completion")
        ids = _ids(row.get("token_ids"))
        if row["status"] != "ok" or not isinstance(answer, str):
            return found | {"reference": name}
        if reference is not None:
            found |= self._remembered_score(reference, answer, reference_ids, ids)
        other = peers.get((row["prompt_id"], row["variant"]))
        if other is not None and row["strategy_id"] != peer:
            found |= _beside_peer(
                other["cluster_completion"], _ids(other.get("token_ids")), answer, ids
            ) | {"peer": peer}
        return found | {"reference": name}

    def _remembered_score(
        self,
        reference: str,
        candidate: str,
        reference_ids: Sequence[int] | None,
        ids: Sequence[int] | None,
    ) -> dict[str, Any]:
        """Score an answer; most strategies give the same ones."""
        tokens = [None if one is None else tuple(one) for one in (reference_ids, ids)]
        key = (reference, candidate, *tokens)
        if key not in self._scores:
            self._scores[key] = asdict(score(reference, candidate, reference_ids, ids))
        return self._scores[key]

    def _reference(
        self, row: Mapping[str, Any]
    ) -> tuple[str, str | None, Sequence[int] | None]:
        truth = self._truth.get(
            (row["prompt_id"], row["variant"]), self._truth.get(row["prompt_id"])
        )
        if truth is not None:
            return "truth", truth, None
        baseline = row.get("local_completion")
        if isinstance(baseline, str):
            return "baseline", baseline, _ids(row.get("local_token_ids"))
        return "none", None, None

    def _means(self, figures: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """Return the mean of each metric with its interval; NaN is not counted."""
        row: dict[str, Any] = {
            "diverged": int((figures["exact_match"] == 0).sum()),
            "peer_diverged": int((figures["peer_exact"] == 0).sum()),
        }
        for name, every in figures.items():
            values = every[~np.isnan(every)]
            row[name] = float(values.mean()) if len(values) else None
            row[f"{name}_low"], row[f"{name}_high"] = interval(values, self._seed) or (
                None,
                None,
            )
        return row

    def _find_warnings(
        self, scores: pd.DataFrame, asked_as_chat: bool
    ) -> Iterator[str]:
        references = set(scores.loc[scores["status"] == "ok", "reference"])
        baseline, study = self._models
        if (
            "baseline" in references
            and baseline
            and study
            and plain_name(baseline) != plain_name(study)
        ):
            yield (
                f"The baseline is of the model {baseline}, the study of {study}: scores"
                " beside the baseline compare models, and only the agreement of"
                " strategies with one another compares layouts."
            )
        if "baseline" in references and asked_as_chat:
            yield (
                "The baseline was asked as a chat, so the endpoint put the model's"
                " marks around each prompt; the cluster got prompts as they are."
                ' Answers may differ for that alone: baseline.api = "completions" asks'
                " for the same."
            )
        if "none" in references:
            count = int(
                ((scores["reference"] == "none") & (scores["status"] == "ok")).sum()
            )
            yield (
                f"{count} answers have neither truth nor baseline: they are compared"
                " only with other strategies'."
            )
        if len(references - {"none"}) > 1:
            yield (
                "Some answers are compared with the truth and some with the baseline:"
                " their means mix both."
            )

    def _embed(self, results: pd.DataFrame, scores: pd.DataFrame) -> None:
        """Fill in `embedding_similarity`: the cosine between reference and answer."""
        if self._embedding_model is None:
            return
        try:
            model = import_module("sentence_transformers").SentenceTransformer(
                self._embedding_model, device="cpu"
            )
        except ImportError:
            self.warnings += (
                "Embeddings are left out: install gpuyard[embed] for them.",
            )
            return
        except (OSError, ValueError) as error:
            self.warnings += (
                (
                    f"Embeddings are left out: {self._embedding_model} cannot be read:"
                    f" {error}"
                ),
            )
            return
        pairs = {
            at: (reference, str(row["cluster_completion"]))
            for at, row in enumerate(_records(results))
            if row["status"] == "ok"
            and (reference := self._reference(row)[1]) is not None
        }
        texts = list(dict.fromkeys(text for pair in pairs.values() for text in pair))
        found = (
            dict(
                zip(texts, model.encode(texts, normalize_embeddings=True), strict=True)
            )
            if texts
            else {}
        )
        column = cast(int, scores.columns.get_loc("embedding_similarity"))
        for at, (one, other) in pairs.items():
            scores.iloc[at, column] = float(np.dot(found[one], found[other]))


def _places(values: pd.Series) -> Iterator[tuple[Any, np.ndarray]]:
    """Yield each value, in the order of its first place, with all its places."""
    codes, names = pd.factorize(values)
    for code, name in enumerate(names):
        yield name, np.flatnonzero(codes == code)


def _beside_peer(
    reference: str,
    reference_ids: Sequence[int] | None,
    answer: str,
    ids: Sequence[int] | None,
) -> dict[str, Any]:
    """Compare an answer with the peer's: by tokens where both have them, else by text.

    Token ids show differences that a detokenizer can hide.
    """
    both = reference_ids is not None and ids is not None
    one, other = (
        (reference_ids, ids)
        if reference_ids is not None and ids is not None
        else (reference, answer)
    )
    place = first_divergence(one, other)
    return {
        "peer_exact": float(place is None),
        "peer_agreement": agree(one, other),
        "peer_divergence": place,
        "peer_unit": "tokens" if both else "characters",
    }


def _first_peer(results: pd.DataFrame) -> str | None:
    """The first of the strategies with most answers."""
    answered = (
        results.loc[results["status"] == "ok"].groupby("strategy_id", sort=False).size()
    )
    return None if answered.empty else str(answered.idxmax())


def _answers(results: pd.DataFrame) -> dict[Any, dict[str, Any]]:
    return {
        (row["prompt_id"], row["variant"]): row
        for row in _records(results)
        if row["status"] == "ok" and isinstance(row["cluster_completion"], str)
    }


def _records(results: pd.DataFrame) -> list[dict[str, Any]]:
    needed = [
        *_KEY,
        "status",
        "cluster_completion",
        "token_ids",
        "local_completion",
        "local_token_ids",
    ]
    return cast(
        list[dict[str, Any]],
        results[[name for name in needed if name in results]].to_dict("records"),
    )


def _ids(value: Any) -> list[int] | None:
    """Token ids as a list; None where there are none."""
    if isinstance(value, np.ndarray):
        return cast(list[int], value.tolist())
    return cast(list[int], value) if isinstance(value, list) else None
