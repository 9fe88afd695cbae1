"""Reads the curves of jobs from a server of MLflow, which may be the only one that has
them.

A job can print any address. So only runs on the server are read that the user of this
process has named, in `MLFLOW_TRACKING_URI`.
"""

import os
from collections.abc import Iterable, Sequence
from itertools import takewhile
from math import isfinite
from typing import Any

import httpx

from gpuyard.domain.errors import UnreachableError

PREFIX = "mlflow/"
"""What the names of these curves begin with."""
Point = dict[str, Any]
_API = "/api/2.0/mlflow"
_TIMEOUT_S = 10.0
_MOST_CURVES = 64
_PAGE = 25_000
_MOST_PAGES = 40


class MlflowServer:
    """The server at `url`, with the name and password or token of this process."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")
        self._http = httpx.Client(
            base_url=self._url, timeout=_TIMEOUT_S, headers=_identity(), auth=_account()
        )

    @classmethod
    def named(cls) -> "MlflowServer | None":
        """The server that this process names; None without one."""
        url = os.environ.get("MLFLOW_TRACKING_URI", "")
        return cls(url) if url.startswith(("http://", "https://")) else None

    def has(self, page: str) -> bool:
        """Whether the page of a run is one of this server."""
        return page.startswith(f"{self._url}/#/")

    def curves(
        self, runs: Sequence[str], names: Sequence[str] = (), points: int = 2000
    ) -> dict[str, list[Point]]:
        """The curves of a job whose attempts were these runs, the oldest first, by name
        with `PREFIX`; all, or those in `names`. Each has at most about so many points
        of `step`, `value` and `at` (UTC seconds).

        UnreachableError if the server does not answer.
        """
        found: dict[str, list[Point]] = {}
        for run in runs:
            for key in self._keys(run):
                name = f"{PREFIX}{key}"
                if names and name not in names:
                    continue
                begun = found.get(name, [])
                found[name] = joined(begun, self._history(run, key))
        return {name: thinned(curve, points) for name, curve in found.items() if curve}

    def _keys(self, run: str) -> list[str]:
        answer = self._get("runs/get", {"run_id": run})
        metrics = answer["run"]["data"].get("metrics", [])
        return [item["key"] for item in metrics][:_MOST_CURVES]

    def _history(self, run: str, key: str) -> list[Point]:
        points: list[Point] = []
        wanted = {"run_id": run, "metric_key": key, "max_results": str(_PAGE)}
        for _ in range(_MOST_PAGES):
            answer = self._get("metrics/get-history", wanted)
            found = (_point(item) for item in answer.get("metrics", []))
            points += (point for point in found if isfinite(point["value"]))
            token = answer.get("next_page_token")
            if not token:
                break
            wanted["page_token"] = token
        return sorted(points, key=lambda point: (point["step"], point["at"]))

    def _get(self, path: str, wanted: dict[str, str]) -> Any:
        try:
            answer = self._http.get(f"{_API}/{path}", params=wanted)
            answer.raise_for_status()
            return answer.json()
        except (httpx.HTTPError, ValueError) as error:
            raise UnreachableError(f"MLflow at {self._url}: {error}") from error


def joined(begun: list[Point], later: list[Point]) -> list[Point]:
    """The points of two attempts: what the later one has done again counts."""
    if not later:
        return begun
    first = later[0]["step"]
    return [*takewhile(lambda point: point["step"] < first, begun), *later]


def thinned(points: list[Point], most: int) -> list[Point]:
    """About `most` of the points, with the least and the greatest value of each part
    that is left out.
    """
    if len(points) <= most:
        return points
    size = -(-2 * len(points) // most)
    kept: list[Point] = []
    for start in range(0, len(points), size):
        part = points[start : start + size]
        least = min(part, key=_value)
        greatest = max(part, key=_value)
        kept.append(least)
        if greatest is not least:
            kept.append(greatest)
            kept[-2:] = sorted(kept[-2:], key=_step)
    return kept if kept[-1] is points[-1] else [*kept, points[-1]]


def runs_on(server: MlflowServer, pages: Iterable[tuple[str, str]]) -> list[str]:
    """The runs on the server among these, each with its page, in their order."""
    return [run for run, page in pages if server.has(page)]


def _value(point: Point) -> float:
    return point["value"]


def _step(point: Point) -> int:
    return point["step"]


def _point(item: Any) -> Point:
    return {
        "step": int(item["step"]),
        "value": float(item["value"]),
        "at": int(item["timestamp"]) / 1000,
    }


def _identity() -> dict[str, str]:
    token = os.environ.get("MLFLOW_TRACKING_TOKEN")
    return {"Authorization": f"Bearer {token}"} if token else {}


def _account() -> tuple[str, str] | None:
    user = os.environ.get("MLFLOW_TRACKING_USERNAME")
    return (user, os.environ.get("MLFLOW_TRACKING_PASSWORD", "")) if user else None
