"""Slurm whose nodes do not see this host's folders: what jobs need goes there, and what they make comes back."""

import json
from collections.abc import Iterator

import pytest

from tests.acceptance.test_slurm import COUNTER, reference, settings
from tests.support.slurm import SlurmCluster
from tests.support.sshd import Sshd
from tests.support.wait import wait_until
from tests.support.yard import TestYard, make_yard


@pytest.fixture(params=["here", "over ssh"])
def yard(slurm: SlurmCluster, sshd: Sshd, request: pytest.FixtureRequest) -> Iterator[TestYard]:
    with make_yard(GPUYARD_SCHEDULER__RETRY_BASE_S="0.1") as made:
        made.home.create()
        spool = made.work.parent / "cluster"  # only this folder is on both sides
        way = {"host": "login", "ssh_options": sshd.options} if request.param == "over ssh" else {"folders": "copied"}
        made.home.settings.write_text(settings(slurm, spool=str(spool), **way))
        made.ok("up")
        yield made
        slurm.call("scancel", "--me", check=False)


def test_a_job_runs_in_a_copy_of_its_folder(yard: TestYard) -> None:
    (yard.work / "data").mkdir()
    (yard.work / "data" / "text").write_text("words")
    (yard.work / "secret.env").write_text("not for others")
    (yard.work / ".gitignore").write_text("*.env\n")
    # Archives cannot hold the year 1970.
    zips = "import zipfile; zipfile.ZipFile('z.zip', 'w').write('data/text')"
    shows = f'pwd; cat data/text; ls; echo made here > made; python3 -c "{zips}"'
    words = ["--provider", "slurm", "--", "sh", "-c", shows]
    first, second = yard.ok("run", *words).splitlines(), yard.ok("run", *words).splitlines()
    assert first[0].startswith(str(yard.work.parent / "cluster"))
    assert first[0] != second[0]
    assert first[1:] == second[1:] == ["wordsdata"], "neither what is ignored nor what another job made"
    assert not (yard.work / "made").exists()
    assert len(list((yard.work.parent / "cluster" / "snapshots").iterdir())) == 1
    (yard.work / "data" / "text").write_text("other words")
    assert yard.ok("run", *words).splitlines()[1] == "other wordsdata"


def test_a_workspace_goes_along_and_comes_back(yard: TestYard) -> None:
    here = yard.home.workspaces / "default" / "corpus"
    yard.ok("run", "--workspace", "corpus", "--", "sh", "-c", "echo one > $GPUYARD_WORKSPACE/first")
    there = ["--provider", "slurm", "--workspace", "corpus", "--", "sh", "-c"]
    shown = yard.ok("run", *there, "cat $GPUYARD_WORKSPACE/first; echo two > $GPUYARD_WORKSPACE/second")
    assert shown == "one\n"
    assert (here / "second").read_text() == "two\n"
    assert yard.run("run", *there, "echo three > $GPUYARD_WORKSPACE/second; exit 3").returncode == 3
    assert (here / "second").read_text() == "three\n", "what a failed job has made is not lost"


def test_whoever_is_refused_leaves_nothing_there(yard: TestYard) -> None:
    path = yard.work / "refused.json"
    path.write_text(json.dumps({"command": ["true"], "provider": "slurm", "workdir": str(yard.work), "workspace": "w",
                                "provider_options": {"partition": "none-such"}}))  # fmt: skip
    job = yard.ok("submit", str(path)).split()[-1]
    assert yard.wait(job).state == "failed"
    assert not list((yard.work.parent / "cluster").glob("attempt_*"))
    left = yard.home.root / "slurm-copies"
    assert [name.name for name in left.iterdir() if name.name.startswith("attempt_")] == []


def test_a_folder_that_is_not_there_is_refused_here(yard: TestYard) -> None:
    done = yard.run("run", "--provider", "slurm", "--workdir", "/no/such/folder", "--", "true")
    assert done.returncode == 125
    shown = done.stderr + yard.run("jobs").stdout
    assert "/no/such/folder" in shown


def test_who_is_taken_off_goes_on_from_a_checkpoint_that_came_back(yard: TestYard, slurm: SlurmCluster) -> None:
    enough = yard.work / "enough"
    (yard.work / "counter.py").write_text(COUNTER)
    words = ["--checkpoint", "step-*.txt", "--", "python3", "counter.py", str(enough)]
    job = yard.ok("run", "-d", "--provider", "slurm", *words).strip()
    wait_until(lambda: yard.json("show", job)["checkpoints"], 60, "a checkpoint")
    slurm.call("scancel", reference(yard, job))
    wait_until(lambda: len(yard.json("show", job)["attempts"]) == 2, 60, "another attempt")
    wait_until(lambda: "from" in yard.run("logs", job).stdout, 60, "it to run again")
    enough.touch()
    assert yard.wait(job).state == "completed"
    assert int(yard.ok("logs", job).split()[1]) >= 20
