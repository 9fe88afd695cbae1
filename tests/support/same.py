"""One spec, run unchanged here and in an external queue: the same output, states and
fields.
"""

import json
from typing import Any

from tests.support.instance import TestInstance

SPEC = {
    "name": "same",
    "command": ["sh", "-c", "echo one; echo step 3: loss 1.5 >&2; exit 3"],
    "timeout_s": 60,
}
SAME = ("state", "reason", "exit_code", "name", "kind")


def run_here_and_there(
    instance: TestInstance, provider: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What `gpuyard show --json` says of both; they are alike but for where they
    ran.
    """
    path = instance.work / "spec.json"
    shown = dict[str, dict[str, Any]]()
    for place in ("local", provider):
        path.write_text(
            json.dumps({**SPEC, "provider": place, "workdir": str(instance.work)})
        )
        job = instance.ok("submit", str(path)).split()[-1]
        instance.wait(job)
        assert instance.ok("logs", job) == "one\nstep 3: loss 1.5\n"
        shown[place] = instance.json("show", job)
    here = shown["local"]
    there = shown[provider]
    assert set(here) == set(there)
    for same in SAME:
        assert here[same] == there[same], same
    assert there["progress"]["step"] == here["progress"]["step"] == 3
    assert there["provider"] == provider
    assert here["warnings"] == []
    return here, there
