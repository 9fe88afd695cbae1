"""Slurm whose nodes do not see this host's folders: what jobs need goes there, and what
they make comes back.
"""

import json
from collections.abc import Iterator

import pytest

from tests.acceptance.test_slurm import COUNTER, reference, settings
from tests.support.carried_flow import check_carried_flow
from tests.support.instance import TestInstance, make_instance
from tests.support.slurm import SlurmCluster
from tests.support.sshd import Sshd
from tests.support.wait import wait_until

# What goes along and comes back goes through ssh, which is the longer way to the same
# `rsync`.
_OVER_SSH = pytest.mark.parametrize("instance", ["over ssh"], indirect=True)
_BOTH_WAYS = pytest.mark.parametrize("instance", ["here", "over ssh"], indirect=True)


@pytest.fixture
def instance(
    slurm: SlurmCluster, sshd: Sshd, request: pytest.FixtureRequest
) -> Iterator[TestInstance]:
    with make_instance(GPUYARD_SCHEDULER__RETRY_BASE_S="0.1") as made:
        made.home.create()
        spool = made.work.parent / "cluster"  # only this folder is on both sides
        way = (
            {"host": "login", "ssh_options": sshd.options}
            if getattr(request, "param", "here") == "over ssh"
            else {"folders": "copied"}
        )
        made.home.settings.write_text(settings(slurm, spool=str(spool), **way))
        made.ok("up")
        yield made
        slurm.call("scancel", "--me", check=False)


@_OVER_SSH
def test_a_job_runs_in_a_copy_of_its_folder(instance: TestInstance) -> None:
    (instance.work / "data").mkdir()
    (instance.work / "data" / "text").write_text("words")
    (instance.work / "secret.env").write_text("not for others")
    (instance.work / ".gitignore").write_text("*.env\n")
    # Archives cannot hold the year 1970.
    zips = "import zipfile; zipfile.ZipFile('z.zip', 'w').write('data/text')"
    shows = f'pwd; cat data/text; ls; echo made here > made; python3 -c "{zips}"'
    words = ["--provider", "slurm", "--", "sh", "-c", shows]
    first = instance.ok("run", *words).splitlines()
    second = instance.ok("run", *words).splitlines()
    assert first[0].startswith(str(instance.work.parent / "cluster"))
    assert first[0] != second[0]
    assert first[1:] == second[1:] == ["wordsdata"], (
        "neither what is ignored nor what another job made"
    )
    assert not (instance.work / "made").exists()
    assert len(list((instance.work.parent / "cluster" / "snapshots").iterdir())) == 1
    (instance.work / "data" / "text").write_text("other words")
    assert instance.ok("run", *words).splitlines()[1] == "other wordsdata"


@_BOTH_WAYS
def test_it_reads_a_dataset_takes_a_command_and_leaves_artifacts(
    instance: TestInstance,
) -> None:
    (instance.work / "given.txt").write_text("given")
    (instance.work / "words").write_text("to be\n")
    instance.ok("datasets", "add", "plays", "words")
    enough = instance.work / "enough"
    code = f"""
        cat $GPUYARD_DATASET_PLAYS/words; stat -c %a $GPUYARD_DATASET_PLAYS/words
        mkdir -p out/deep; echo made > out/deep/made.txt; echo own > own.txt
        while [ ! -e {enough} ]; do sleep 0.1; done
        """
    place = ("--provider", "slurm", "--dataset", "plays")
    leaves = ("--artifacts", "*.txt", "--artifacts", "out", "--secret", "WORD")
    instance.ok("secret", "set", "WORD", input="hush")
    words = ("run", "-d", *place, *leaves, "--", "sh", "-c", code)
    jobs = [instance.ok(*words).strip() for _ in range(2)]
    for job in jobs:
        wait_until(lambda: "to be" in instance.run("logs", job).stdout, what="it")  # noqa: B023
    instance.wait(jobs[0], "running")  # its output may be there before the server knows
    shows = "pwd; cat own.txt; echo $WORD; cat; exit 3"
    done = instance.run("exec", jobs[0], "--", "sh", "-c", shows, input="input")
    assert done.returncode == 3, done.stderr
    spool = instance.work.parent / "cluster"
    assert done.stdout.startswith(str(spool))
    assert done.stdout.endswith("\nown\nhush\ninput")
    enough.touch()
    for job in jobs:
        assert instance.wait(job).state == "completed"
        left = instance.json("artifacts", "list", job)["items"]
        assert [file["path"] for file in left] == ["out/deep/made.txt", "own.txt"]
        assert instance.ok("logs", job) == "to be\n444\n"
    assert len(list((spool / "datasets/copies").iterdir())) == 1
    notes = spool / "datasets/users"
    wait_until(lambda: not list(notes.iterdir()), what="the notes to go")


@_BOTH_WAYS
def test_a_workspace_goes_along_and_comes_back(instance: TestInstance) -> None:
    here = instance.home.workspaces / "default" / "corpus"
    instance.ok(
        "run",
        "--workspace",
        "corpus",
        "--",
        "sh",
        "-c",
        "echo one > $GPUYARD_WORKSPACE/first",
    )
    there = ["--provider", "slurm", "--workspace", "corpus", "--", "sh", "-c"]
    shown = instance.ok(
        "run",
        *there,
        "cat $GPUYARD_WORKSPACE/first; echo two > $GPUYARD_WORKSPACE/second",
    )
    assert shown == "one\n"
    assert (here / "second").read_text() == "two\n"
    assert (
        instance.run(
            "run", *there, "echo three > $GPUYARD_WORKSPACE/second; exit 3"
        ).returncode
        == 3
    )
    assert (here / "second").read_text() == "three\n", (
        "what a failed job has made is not lost"
    )


def test_whoever_is_refused_leaves_nothing_there(instance: TestInstance) -> None:
    path = instance.work / "refused.json"
    path.write_text(
        json.dumps(
            {
                "command": ["true"],
                "provider": "slurm",
                "workdir": str(instance.work),
                "workspace": "w",
                "provider_options": {"partition": "none-such"},
            }
        )
    )
    job = instance.ok("submit", str(path)).split()[-1]
    assert instance.wait(job).state == "failed"
    assert not list((instance.work.parent / "cluster").glob("attempt_*"))
    left = instance.home.root / "slurm-copies"
    assert [
        name.name for name in left.iterdir() if name.name.startswith("attempt_")
    ] == []


def test_a_folder_that_is_not_there_is_refused_here(instance: TestInstance) -> None:
    done = instance.run(
        "run", "--provider", "slurm", "--workdir", "/no/such/folder", "--", "true"
    )
    assert done.returncode == 125
    shown = done.stderr + instance.run("jobs").stdout
    assert "/no/such/folder" in shown


@_OVER_SSH
def test_who_is_taken_off_goes_on_from_a_checkpoint_that_came_back(
    instance: TestInstance, slurm: SlurmCluster
) -> None:
    enough = instance.work / "enough"
    (instance.work / "counter.py").write_text(COUNTER)
    words = ["--checkpoint", "step-*.txt", "--", "python3", "counter.py", str(enough)]
    job = instance.ok("run", "-d", "--provider", "slurm", *words).strip()
    wait_until(lambda: instance.json("show", job)["checkpoints"], what="a checkpoint")
    slurm.call("scancel", reference(instance, job))
    wait_until(
        lambda: len(instance.json("show", job)["attempts"]) == 2, what="another attempt"
    )
    wait_until(
        lambda: "from" in instance.run("logs", job).stdout, what="it to run again"
    )
    enough.touch()
    assert instance.wait(job).state == "completed"
    first, second = instance.json("show", job)["attempts"]
    assert first["reason"] == "preempted"
    assert second["resumed_from"]
    assert int(instance.ok("logs", job).split()[1]) >= 20


@pytest.mark.timeout(600)  # a flow is several jobs
def test_a_flow_passes_its_files_on(instance: TestInstance) -> None:
    place = check_carried_flow(instance, 'provider = "slurm"')
    assert place.startswith(str(instance.work.parent / "cluster"))
