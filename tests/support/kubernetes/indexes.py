"""Completion indexes of Jobs, as `0,2-4` in their status."""

from collections.abc import Iterable

from tests.support.kubernetes.objects import Object, annotations

INDEX = "batch.kubernetes.io/job-completion-index"


def parse(text: str) -> set[int]:
    found: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found


def show(indexes: Iterable[int]) -> str:
    """Runs of three and more are drawn together, and pairs with a comma, as the Job
    controller does.
    """
    runs: list[list[int]] = []
    for each in sorted(indexes):
        if runs and runs[-1][-1] == each - 1:
            runs[-1].append(each)
        else:
            runs.append([each])
    return ",".join(_run(run) for run in runs)


def _run(run: list[int]) -> str:
    if len(run) > 2:
        return f"{run[0]}-{run[-1]}"
    return ",".join(map(str, run))


def index_of(pod: Object) -> int | None:
    text = annotations(pod).get(INDEX)
    return int(text) if text is not None else None
