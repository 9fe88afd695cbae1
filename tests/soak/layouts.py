"""`python -m tests.soak.layouts [--seed N] [--write]`: nine layouts, the families of
models and forty prompts, against transformers' own `generate`.

All is compared with what transformers answers in fp32, one prompt at a time. In fp32
every layout must give the same tokens. In bf16 it must agree with these up to rounding
as often as transformers' own bf16 does: that is the noise floor. Exit code 1 otherwise.
`--write` puts the table into docs/benchmarks.md.

Layouts of more than one process are processes on this host, which communicate by gloo.
It takes some minutes on two cores.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from benchmarks.page import computed_by, measured_by, store_table
from gpuyard.studies.agreement import (
    Comparison,
    Difference,
    Key,
    StrategyAnswer,
    compare,
)
from gpuyard.studies.engine_checks import SERVING, engine_faults
from gpuyard.studies.strategies import ParallelismStrategy
from tests.integration.studies.test_runtime_programs.running import (
    PROGRAMS,
    RUNTIME,
    metrics_of,
    run,
    write_config,
)
from tests.support.huggingface import make_fast_trainer_python

Layout = tuple[int, int, int]
LAYOUTS: dict[str, Layout] = {
    "one process": (1, 1, 1),
    "tp 2": (2, 1, 1),
    "tp 4": (4, 1, 1),
    "pp 2": (1, 2, 1),
    "pp 4": (1, 4, 1),
    "dp 2": (1, 1, 2),
    "tp 2, pp 2": (2, 2, 1),
    "tp 2, dp 2": (2, 1, 2),
    "pp 2, dp 2": (1, 2, 2),
}
FAMILIES = {
    "llama": "Llama",
    "mistral": "Mistral",
    "qwen": "Qwen2",
    "qwen3": "Qwen3",
    "gemma": "Gemma",
    "mixtral": "Mixtral",
    "deepseek": "DeepSeek-V3",
}
PRECISIONS = ("fp32", "bf16")
ENGINES = ("torch", "deepspeed")
NEW_TOKENS = 16
BATCH = 20
_TIMEOUT_S = 1800.0
Answers = Mapping[Key, StrategyAnswer]


@dataclass(frozen=True, slots=True)
class Case:
    """One experiment: a model in a precision, split in one way by an engine."""

    engine: str
    model: str
    precision: str
    layout: str

    @property
    def processes(self) -> int:
        """How many processes it has."""
        return prod(LAYOUTS[self.layout])

    def folder(self, home: Path) -> Path:
        """Where its results are."""
        sizes = "x".join(map(str, LAYOUTS[self.layout]))
        return home / f"{self.engine}-{self.model}-{self.precision}-{sizes}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of an experiment; `error` is why there is nothing to compare."""

    comparison: Comparison | None
    error: str = ""

    def words(self, precision: str) -> str:
        """Equal answers of all; in 16 bits also those that agree up to rounding."""
        if self.comparison is None:
            return "failed"
        same = f"{self.comparison.same} of {self.comparison.compared}"
        if precision == "fp32":
            return same
        return f"{same}; {self.comparison.agreeing} up to rounding"


Found = Mapping[Case, Outcome]
Floors = Mapping[tuple[str, str], Outcome]
"""The noise of transformers, by model and precision."""


def main() -> int:
    """Run everything, print the table; 1 when a layout answers as it must not."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.soak.layouts", description=__doc__
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--family", action="append", choices=FAMILIES, help="only this one; repeatable"
    )
    parser.add_argument(
        "--engine", action="append", choices=ENGINES, help="only this one; repeatable"
    )
    parser.add_argument("--write", action="store_true", help="update the page")
    words = parser.parse_args()
    families = words.family or list(FAMILIES)
    engines = words.engine or ENGINES
    with tempfile.TemporaryDirectory() as folder:
        floors, found = measure(Path(folder), engines, families, words.seed)
    for engine in engines:
        rows = table(engine, families, floors, found)
        sys.stdout.writelines(" | ".join(row) + "\n" for row in rows)
        if words.write and not words.family:
            options = f"--seed {words.seed} --engine {engine} --write"
            command = f"python -m tests.soak.layouts {options}"
            store_table(f"layouts.{engine}", measured_by(command), rows)
    if words.write:
        command = "python -m tests.soak.layouts --write"
        store_table("layouts.unproven", computed_by(command), unproven())
    faults = list(faults_of(floors, found))
    sys.stdout.writelines(f"{fault}\n" for fault in faults)
    return int(bool(faults))


def measure(
    home: Path, engines: Sequence[str], families: Sequence[str], seed: int
) -> tuple[Floors, Found]:
    """Make the models in a folder, run every experiment, and compare the answers."""
    python = make_fast_trainer_python()
    models = home / "models"
    command = [python, PROGRAMS / "layout_models.py", models, seed, *families]
    codes, text = run(command, 1, _TIMEOUT_S)
    if codes != [0]:
        raise RuntimeError(text)
    cases = list(all_cases(engines, families))
    for engine in engines:
        mine = [one for one in cases if one.engine == engine]
        for world in sorted({one.processes for one in mine}):
            some = [one for one in mine if one.processes == world]
            run_cases(python, home, models, some)
    floors = {
        (model, precision): Outcome(noise_of_transformers(models, model, precision))
        for model in families
        for precision in PRECISIONS
    }
    return floors, {case: outcome_of(home, models, case) for case in cases}


def all_cases(engines: Sequence[str], families: Sequence[str]) -> Iterator[Case]:
    """Every experiment that the engines offer."""
    for engine in engines:
        for layout in LAYOUTS:
            if not is_offered(engine, layout):
                continue
            for model in families:
                for precision in PRECISIONS:
                    yield Case(engine, model, precision, layout)


def is_offered(engine: str, layout: str) -> bool:
    """Whether studies let an engine split a model in this way on one node."""
    tp, pp, dp = LAYOUTS[layout]
    strategy = ParallelismStrategy(
        gpus_per_node=tp * pp * dp, tp_size=tp, pp_size=pp, dp_size=dp
    )
    return not engine_faults(strategy, engine, "strategy")


def run_cases(python: Path, home: Path, models: Path, cases: Sequence[Case]) -> None:
    """Run experiments of equally many processes in one group of these.

    What fails says so in its metrics.
    """
    paths: list[str] = []
    for case in cases:
        layout = LAYOUTS[case.layout]
        path = write_config(
            case.folder(home),
            models / case.model,
            layout=layout,
            engine=case.engine,
            precision=case.precision,
            batch_size=BATCH,
            micro_batches=2 if layout[1] > 1 else 1,
            max_new_tokens=NEW_TOKENS,
            variants=["2k", "4k"],
        )
        paths.append(str(path))
    first = cases[0]
    sys.stderr.write(
        f"{first.engine}, processes: {first.processes}, experiments: {len(cases)}\n"
    )
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("\n".join(paths))
        file.flush()
        command = [python, PROGRAMS / "rank_of_many.py", RUNTIME, file.name]
        codes, text = run(command, cases[0].processes, _TIMEOUT_S, DS_ACCELERATOR="cpu")
    if any(codes):
        sys.stderr.write(text[-4000:])


def outcome_of(home: Path, models: Path, case: Case) -> Outcome:
    """Compare an experiment's answers with those of transformers in fp32."""
    folder = case.folder(home)
    ranks = metrics_of(folder)
    errors = [str(one["error"]) for one in ranks if one["error"]]
    if errors or len(ranks) != case.processes:
        return Outcome(None, errors[0] if errors else "a rank left no metrics")
    expected = answers_of(models, case.model, "fp32", "alone")
    answers = dict(ranks_answers(folder))
    if answers.keys() != expected.keys():
        return Outcome(None, f"{len(answers)} of {len(expected)} prompts are answered")
    return Outcome(compare(expected, answers, case.precision))


def ranks_answers(folder: Path) -> Iterator[tuple[Key, StrategyAnswer]]:
    """The answers that all ranks wrote."""
    for path in sorted(folder.glob("outputs/shard_*.jsonl")):
        for line in path.read_text().splitlines():
            row: dict[str, Any] = json.loads(line)
            yield (
                (row["variant"], row["prompt_id"]),
                StrategyAnswer(
                    row["completion"],
                    row["token_ids"],
                    row["logprobs"] or (),
                    row["runner_up_ids"] or (),
                    row["runner_up_logprobs"] or (),
                ),
            )


def answers_of(models: Path, model: str, precision: str, way: str) -> Answers:
    """What transformers answered: `alone` or `batched`."""
    document = json.loads((models / model / "answers.json").read_text())
    found: dict[Key, StrategyAnswer] = {}
    for key, (tokens, sure) in document[precision][way].items():
        variant, _, prompt_id = key.partition("/")
        own, others, seconds = zip(*sure, strict=True)
        text = " ".join(f"w{token}" for token in tokens)
        answer = StrategyAnswer(text, tokens, own, list(map(int, others)), seconds)
        found[variant, prompt_id] = answer
    return found


def noise_of_transformers(models: Path, model: str, precision: str) -> Comparison:
    """Compare transformers with itself: in batches, or in 16 bits, with the reference."""
    way = "batched" if precision == "fp32" else "alone"
    return compare(
        answers_of(models, model, "fp32", "alone"),
        answers_of(models, model, precision, way),
        precision,
    )


def table(
    engine: str, families: Sequence[str], floors: Floors, found: Found
) -> list[list[str]]:
    """A row for each precision and family, with a column for each layout."""
    head = ["engine", "precision", "family", "noise of transformers", *LAYOUTS]
    rows = [[*head, "first difference"]]
    for precision in PRECISIONS:
        for model in families:
            floor = floors[model, precision].words(precision)
            row = [engine, precision, FAMILIES[model], floor]
            outcomes: list[Outcome] = []
            for layout in LAYOUTS:
                outcome = found.get(Case(engine, model, precision, layout))
                if outcome is None:
                    row.append("not offered")
                    continue
                row.append(outcome.words(precision))
                outcomes.append(outcome)
            rows.append([*row, first_difference(outcomes)])
    return rows


def unproven() -> list[list[str]]:
    """The engines that need a GPU, with a column for each layout."""
    rows = [["engine", *LAYOUTS]]
    for engine in SERVING:
        cells = [
            "needs a GPU" if is_offered(engine, layout) else "not offered"
            for layout in LAYOUTS
        ]
        rows.append([engine, *cells])
    return rows


def first_difference(outcomes: Sequence[Outcome]) -> str:
    """The gravest difference of a row's layouts, or why one failed."""
    errors = [one.error for one in outcomes if one.error]
    if errors:
        return errors[0].replace("|", "/").splitlines()[0][:200]
    gravity = (Difference.BEYOND, Difference.UNEXPLAINED, Difference.ROUNDING)
    differences = [
        one.comparison.first
        for one in outcomes
        if one.comparison is not None and one.comparison.first is not None
    ]
    first = min(
        differences,
        key=lambda one: (gravity.index(one.kind), one.place),
        default=None,
    )
    return "none" if first is None else f"{first.kind}: {first}"


def faults_of(floors: Floors, found: Found) -> Iterator[str]:
    """What must not be: other tokens in fp32; in bf16 more than rounding explains."""
    for case, outcome in found.items():
        name = f"{case.engine}, {case.model}, {case.precision}, {case.layout}"
        comparison = outcome.comparison
        if comparison is None:
            yield f"{name}: {outcome.error}"
            continue
        if case.precision == "fp32":
            if comparison.same < comparison.compared:
                yield f"{name}: {comparison.first}"
            continue
        floor = floors[case.model, case.precision].comparison
        measured = None if floor is None else floor.share
        if comparison.is_wrong(case.precision, measured):
            agreeing = f"{comparison.agreeing} of {comparison.compared}"
            yield f"{name}: {agreeing} agree; first {comparison.first}"


if __name__ == "__main__":
    sys.exit(main())
