"""A flow that is carried, for tests of the places where its steps run."""

import json
from pathlib import Path

from tests.support.instance import TestInstance

_FLOW = """
carry = true

[steps.clean]
command = ["sh", "scripts/clean.sh"]
inputs = ["data"]
outputs = ["out/clean", "out/log.txt"]
{where}

[steps.count]
command = ["./count.sh"]
needs = ["clean"]
outputs = ["count.txt", "place.txt"]
{where}
"""
_CLEAN = """\
set -e
mkdir out/clean
for it in data/*.txt; do tr A-Z a-z < "$it" > out/clean/"${it##*/}"; done
wc -c < data/large.bin > out/log.txt
"""
_COUNT = """\
#!/bin/sh
cat out/clean/*.txt | wc -w > count.txt
cat out/log.txt >> count.txt
{ pwd; ls; } > place.txt
"""


def check_carried_flow(instance: TestInstance, where: str) -> str:
    """Run a flow whose steps have the line `where` in their tables, and again when an
    output is gone: files go there and come back. The folder in which its last step ran.
    """
    folder = instance.work / "flow"
    _write(folder, where)
    assert _states(instance) == {"clean": "completed", "count": "completed"}
    assert (folder / "out/clean/a b.txt").read_text() == "to be\n"
    assert (folder / "count.txt").read_text().split() == ["4", str(_LARGE)]
    place, *names = (folder / "place.txt").read_text().splitlines()
    assert place != str(folder), place
    assert names == ["count.sh", "count.txt", "out", "place.txt"]

    (folder / "count.txt").unlink()
    assert _states(instance) == {"clean": "cached", "count": "cached"}
    assert (folder / "count.txt").is_file(), "what was kept is fetched"
    return place


# Files of this size are links there.
_LARGE = 17_000_000


def _write(folder: Path, where: str) -> None:
    for name in ("data", "scripts"):
        (folder / name).mkdir(parents=True)
    (folder / "flow.toml").write_text(_FLOW.format(where=where))
    (folder / "scripts/clean.sh").write_text(_CLEAN)
    (folder / "count.sh").write_text(_COUNT)
    (folder / "count.sh").chmod(0o755)
    (folder / "data/a b.txt").write_text("TO BE\n")
    (folder / "data/-n.txt").write_text("OR NOT\n")
    (folder / "data/large.bin").write_bytes(bytes(_LARGE))


def _states(instance: TestInstance) -> dict[str, str]:
    """What became of each step of a run."""
    done = instance.run("flow", "run", "flow/flow.toml", "--json", timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr + instance.newest_logs()
    return {step["step"]: step["state"] for step in json.loads(done.stdout)["steps"]}
