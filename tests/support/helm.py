"""The Helm chart as Helm itself renders it: the program on the PATH, or the library in
the package helm-python-sdk.
"""

import importlib
import importlib.util
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import yaml

from tests.support.components import require

CHART = Path(__file__).parents[2] / "deploy/helm/gpuyard"
Values = dict[str, Any]


class ChartError(Exception):
    """Helm refuses; the message is its own."""


def require_helm() -> None:
    """Fail where there is no Helm."""
    library = importlib.util.find_spec("helm_python")
    require("helm", bool(shutil.which("helm") or library))


def render(
    values: Values | None = None, *, name: str = "instance", namespace: str = "ml"
) -> list[Values]:
    """Every document of the chart with these values.

    ChartError where it refuses them.
    """
    ask = _by_program if shutil.which("helm") else _by_library
    text = ask(values or {}, name, namespace)
    return [document for document in yaml.safe_load_all(text) if document]


def lint() -> list[str]:
    """What Helm's own linter has against the chart; remarks (INFO) are left out."""
    if shutil.which("helm"):
        command = ["helm", "lint", "--strict", CHART]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=60, check=False
        )
        return [
            line
            for line in done.stdout.splitlines()
            if line.startswith(("[WARNING]", "[ERROR]"))
        ]
    messages = importlib.import_module("helm_python").lint(str(CHART))["messages"]
    return [str(message) for message in messages if message["severity"] > 1]


def _by_program(values: Values, name: str, namespace: str) -> str:
    command = [
        "helm",
        "template",
        name,
        CHART,
        "--namespace",
        namespace,
        "--values",
        "-",
    ]
    done = subprocess.run(
        command,
        input=json.dumps(values),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if done.returncode:
        raise ChartError(done.stderr)
    return done.stdout


def _by_library(values: Values, name: str, namespace: str) -> str:
    helm = importlib.import_module("helm_python")
    try:
        with helm.Chart.load(str(CHART)) as chart:
            files = chart.render(values, name=name, namespace=namespace)
    except helm.HelmError as error:
        raise ChartError(str(error)) from error
    return "\n---\n".join(
        text for path, text in files.items() if path.endswith(".yaml")
    )
