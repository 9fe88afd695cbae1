"""What the shell may offer for a word: jobs, labels, GPU classes and so on, for
`autocompletion` of options and arguments.

A suggestion starts no server and waits for one a second at most; without an answer
there is none. Each is a value and a word about it.
"""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

Suggestion = tuple[str, str]
Item = Mapping[str, Any]
WAIT_S = 1.0
_JOBS = 100
_LIVE = ("running", "assigned", "unknown", "queued")
_ENDED = ("failed", "cancelled", "timed_out")


def jobs(incomplete: str) -> list[Suggestion]:
    """Names of jobs, and the ends of their ids."""
    return _jobs(incomplete, ())


def live_jobs(incomplete: str) -> list[Suggestion]:
    """Jobs that are not over."""
    return _jobs(incomplete, _LIVE)


def ended_jobs(incomplete: str) -> list[Suggestion]:
    """Jobs that can be resumed."""
    return _jobs(incomplete, _ENDED)


def names(incomplete: str) -> list[Suggestion]:
    """Names of jobs."""
    return _beginning(incomplete, _names_of(_newest_jobs(incomplete)))


def states(incomplete: str) -> list[Suggestion]:
    """States of jobs."""
    from gpuyard.domain.states import JobState

    return _beginning(incomplete, ((state.value, "") for state in JobState))


def live_states(incomplete: str) -> list[Suggestion]:
    """States of jobs that are not over."""
    return _beginning(incomplete, ((state, "") for state in _LIVE))


def labels(incomplete: str) -> list[Suggestion]:
    """`KEY=` of the labels of recent jobs; behind the `=`, the values."""
    key, has_value, _ = incomplete.partition("=")
    labels_of_jobs = [job["labels"] for job in _newest_jobs()]
    if has_value:
        words = [f"{key}={labels[key]}" for labels in labels_of_jobs if key in labels]
    else:
        words = [f"{name}=" for labels in labels_of_jobs for name in labels]
    return _beginning(incomplete, ((word, "") for word in words))


def projects(incomplete: str) -> list[Suggestion]:
    """Projects of recent jobs."""
    return _beginning(incomplete, _column(_newest_jobs(), "project"))


def users(incomplete: str) -> list[Suggestion]:
    """Who submitted recent jobs, on a shared workstation."""
    return _beginning(incomplete, _column(_newest_jobs(), "user"))


def gpu_classes(incomplete: str) -> list[Suggestion]:
    """GPU classes and families, and the memory of each."""
    return _beginning(incomplete.lower(), _gpu_classes())


def gpu_wishes(incomplete: str) -> list[Suggestion]:
    """What `--gpus` takes: `1`, or `a100:` and then a number."""
    kind, has_count, _ = incomplete.partition(":")
    counts = ("1", "2", "4", "8")
    if has_count:
        return _beginning(incomplete, ((f"{kind}:{count}", "") for count in counts))
    classes = ((f"{name}:", memory) for name, memory in _gpu_classes())
    wishes = [*((count, "") for count in counts), *classes]
    return _beginning(incomplete.lower(), wishes)


def gpu_sizes(incomplete: str) -> list[Suggestion]:
    """Sizes of the memory of GPUs."""
    from gpuyard.domain.gpus import GPU_CLASSES

    sizes = sorted({spec.memory_gb for spec in GPU_CLASSES.values()})
    return _beginning(incomplete, ((f"{size}GB", "") for size in sizes))


def gpus(incomplete: str) -> list[Suggestion]:
    """GPUs by index and by UUID."""
    found = _listed("gpus")
    by_index = [(str(gpu["index"]), gpu["name"]) for gpu in found]
    by_uuid = [(gpu["uuid"], gpu["name"]) for gpu in found]
    return _beginning(incomplete, [*by_index, *by_uuid])


def places(incomplete: str) -> list[Suggestion]:
    """Places that can be trusted: providers, nodes, GPUs."""
    kind = incomplete.partition(":")[0]
    found = [("node:", ""), ("gpu:", ""), *_column(_listed("providers"), "name")]
    if kind == "node":
        found = [(f"node:{node['name']}", node["state"]) for node in _listed("nodes")]
    elif kind == "gpu":
        found = [(f"gpu:{gpu['uuid']}", gpu["name"]) for gpu in _listed("gpus")]
    return _beginning(incomplete, found)


def signals(incomplete: str) -> list[Suggestion]:
    """Signals that make a program save."""
    return _beginning(incomplete, [(name, "") for name in ("USR1", "USR2", "TERM")])


def strategies(incomplete: str) -> list[Suggestion]:
    """How offers are ranked."""
    from gpuyard.domain.offers import Strategy

    return _beginning(incomplete, ((strategy.value, "") for strategy in Strategy))


def templates(incomplete: str) -> list[Suggestion]:
    """Templates."""
    from gpuyard.templates import names as known

    return _beginning(incomplete, ((name, "") for name in known()))


def listed(noun: str, field: str = "name") -> Callable[[str], list[Suggestion]]:
    """A function that suggests this field of all items of a collection of the API."""

    def suggest(incomplete: str) -> list[Suggestion]:
        return _beginning(incomplete, _column(_listed(noun), field))

    return suggest


tiers = listed("tiers", "id")
providers = listed("providers")
models = listed("models")
secrets = listed("secrets")
workspaces = listed("workspaces")
batches = listed("batches", "batch_id")


# --- From the server ----------------------------------------------------------------


def _jobs(incomplete: str, wanted: Sequence[str]) -> list[Suggestion]:
    found = _newest_jobs(incomplete, wanted)
    by_id = [(job["id"][-8:], f"{job['name']}, {job['state']}") for job in found]
    whole = [(job["id"], job["name"]) for job in found if incomplete.startswith("job_")]
    return _beginning(incomplete, [*_names_of(found), *by_id, *whole])


def _names_of(found: Iterable[Item]) -> list[Suggestion]:
    return [(job["name"], job["state"]) for job in found]


def _newest_jobs(name: str = "", wanted: Sequence[str] = ()) -> list[Item]:
    """The newest jobs, and the newest whose names begin so."""
    conditions: dict[str, Any] = {"limit": _JOBS, "state": wanted, "folded": "true"}
    found = _listed("jobs", conditions)
    if name and len(found) == _JOBS:
        found += _listed("jobs", {**conditions, "name": f"{name}*"})
    return found


def _listed(noun: str, conditions: Mapping[str, Any] | None = None) -> list[Item]:
    """The items of a collection of the API; none when the server does not answer."""
    found: list[Item] = []

    def ask() -> None:
        # A shell that waits for words wants no error.
        with suppress(Exception):
            found.extend(_ask(f"/api/v1/{noun}", dict(conditions or {})))

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(WAIT_S)
    return list(found)


def _ask(path: str, conditions: dict[str, Any]) -> list[Item]:
    from gpuyard.client import light
    from gpuyard.client.connection import find_server

    address = find_server(start=False)
    if light.can_read(address):
        return light.Reader(address, WAIT_S).get(path, conditions)["items"]
    from gpuyard.client.calls import Call
    from gpuyard.client.sync import Client

    with Client(address) as client:
        return client.call(Call("GET", path, lambda page: page["items"], conditions))


def _column(items: Iterable[Item], field: str) -> list[Suggestion]:
    return [(str(item[field]), "") for item in items if item.get(field)]


def _gpu_classes() -> list[Suggestion]:
    from gpuyard.domain.gpus import FAMILIES, GPU_CLASSES

    families = [(family, "any size") for family in FAMILIES]
    classes = [(one.value, f"{spec.memory_gb} GB") for one, spec in GPU_CLASSES.items()]
    return [*families, *classes]


def _beginning(incomplete: str, found: Iterable[Suggestion]) -> list[Suggestion]:
    """Those that begin so, each once, in their order."""
    matching: dict[str, str] = {}
    for value, about in found:
        if value.startswith(incomplete):
            matching.setdefault(value, about)
    return list(matching.items())
