"""A model and a batch of scripts on nodes that are not the server's machine."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import httpx

from tests.support.instance import TestInstance
from tests.support.wait import wait_until

PROGRAMS = Path(__file__).parents[1] / "programs"
_OVER = ("completed", "failed", "cancelled")


def work_settings(folder: Path) -> str:
    """Sections for the model `a` and the script `steps`, whose files are copied to
    `folder`, which all nodes see.
    """
    for name in ("chat/server.py", "scripts/steps.py"):
        shutil.copy(PROGRAMS / name, folder)
    serve = [sys.executable, str(folder / "server.py"), "a", "--port", "{port}"]
    return f"""
[models.a]
command = {json.dumps(serve)}
memory_gb = 20
boot_s = 1
joined = true
[scripts.steps]
file = "{folder}/steps.py"
item_s = 60
joined = true
"""


def ask(instance: TestInstance, timeout: float = 300) -> str:
    """What the model `a` answers, once a node has it."""
    address = instance.address()
    answer = httpx.post(
        f"{address.url}/v1/chat/completions",
        json={"model": "a", "messages": [{"role": "user", "content": "hello"}]},
        headers={"Authorization": f"Bearer {address.token}"},
        timeout=timeout,
    )
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["message"]["content"])


def run_batch(instance: TestInstance, folder: Path) -> dict[str, Any]:
    """A batch of three items in `folder`, when it is over."""
    items = folder / "items"
    items.mkdir()
    for number in range(3):
        (items / f"{number}.txt").write_text(f"text {number}")
    options = ("--arg", f"log={folder}/log", "--results", f"{folder}/results", "-d")
    batch = instance.ok("batch", "submit", "steps", str(items), *options).strip()

    def over() -> dict[str, Any] | None:
        found = instance.json("batch", "show", batch)
        return found if found["state"] in _OVER else None

    return wait_until(over, timeout=300, what=f"{batch} to be over")


def check_work(instance: TestInstance, folder: Path) -> str:
    """The model answers, and the batch is done, each on a node that is not the
    server's; the job of the model.
    """
    assert "hello" in ask(instance)
    (model,) = instance.json("models")["items"]
    (replica,) = model["replicas"]
    found = run_batch(instance, folder)
    assert (found["state"], found["completed"]) == ("completed", 3), found
    results = sorted(Path(found["results"]).glob("*.json"))
    outputs = [json.loads(file.read_text())["output"] for file in results[:3]]
    assert all("text" in str(output) for output in outputs), outputs
    return str(replica["job_id"])
