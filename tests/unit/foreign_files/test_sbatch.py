"""Batch scripts of Slurm become jobs, and nothing in them is dropped in silence."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gpuyard.domain.arrays import ArraySpec
from gpuyard.domain.errors import InvalidInputError
from gpuyard.domain.jobspec import JobSpec
from gpuyard.foreign_files import sbatch
from gpuyard.foreign_files.sbatch_lines import is_batch_script
from gpuyard.foreign_files.translation import Translation

HOME = Path("/work")


def script(*options: str, commands: str = "true") -> str:
    """A batch script with these options, a line each."""
    return "\n".join(["#!/bin/bash", *(f"#SBATCH {o}" for o in options), commands, ""])


def translated(*options: str, commands: str = "true", **shell: str) -> Translation:
    text = script(*options, commands=commands)
    return sbatch.translate(text, "job.sbatch", ["a", "b c"], HOME, shell)


def body(*options: str) -> dict[str, Any]:
    """What such a script becomes, of which our own model must take all."""
    found = translated(*options).body
    model = ArraySpec if "array" in found else JobSpec
    model.model_validate({"workdir": "/", **found})
    return found


@pytest.mark.parametrize(
    ("options", "resources"),
    [
        (["--gres=gpu:2"], {"gpus": {"count": 2}}),
        (["--gres=gpu:a100:4"], {"gpus": {"count": 4, "gpu_class": "a100"}}),
        (["--gres gpu"], {"gpus": {"count": 1}}),
        (["--gpus=v100:2"], {"gpus": {"count": 2, "gpu_class": "v100"}}),
        (["-N 2 -G 8"], {"nodes": 2, "gpus": {"count": 4}}),
        (["--gpus-per-node=a100"], {"gpus": {"count": 1, "gpu_class": "a100"}}),
        (
            ["--ntasks=4", "--gpus-per-task=1", "-c 6"],
            {"cpus": 24, "gpus": {"count": 4}},
        ),
        (["-n4", "-N2"], {"nodes": 2, "cpus": 2}),
        (["--nodes=2-2", "--ntasks-per-node=8"], {"nodes": 2, "cpus": 8}),
        (["--mem=4000"], {"memory_gb": 4000 / 1024}),
        (["--mem=16G", "--gpus=0"], {"memory_gb": 16, "gpus": {"count": 0}}),
        (["--mem-per-cpu=2G", "-c 8"], {"cpus": 8, "memory_gb": 16}),
        (["--mem-per-gpu=10G", "--gpus=2"], {"memory_gb": 20, "gpus": {"count": 2}}),
        (["--cpus-per-gpu=4", "--gpus=2"], {"cpus": 8, "gpus": {"count": 2}}),
        (["--mem=1G # enough", "--mem=2G"], {"memory_gb": 2}),
    ],
)
def test_what_it_asks_for(options: list[str], resources: Mapping[str, Any]) -> None:
    assert body(*options)["resources"] == resources


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 5400),
        ("2:30", 150),
        ("1:00:00", 3600),
        ("1-12", 129_600),
        ("1-12:30", 131_400),
        ("0-00:00:30", 30),
    ],
)
def test_times_are_read_as_slurm_reads_them(text: str, seconds: int) -> None:
    assert body(f"--time={text}")["timeout_s"] == seconds


def test_no_limit_of_time_is_none() -> None:
    assert "timeout_s" not in body("--time=UNLIMITED")


def test_its_other_options() -> None:
    found = body(
        '--job-name="my run" --hold',
        "--array=0-9:3%2",
        "--chdir=sub",
        '--comment="seed 7"',
        "--dependency=afterok:first:second,afterany:third",
        "--signal=B:USR1@120",
        "-p gpu -A lab",
    )
    assert found["name"] == "my run"
    assert found["held"] is True
    assert found["array"] == "0-9:3%2"
    assert found["workdir"] == "/work/sub"
    assert found["labels"] == {"comment": "seed 7"}
    assert found["depends_on"] == ["first", "second"]
    assert found["depends_on_any"] == ["third"]
    assert found["checkpoint"] == {"signal": "USR1", "grace_s": 120}
    assert found["provider_options"] == {"partition": "gpu", "account": "lab"}
    assert found["command"] == ["bash", "-s", "--", "a", "b c"]


def test_without_options_it_has_its_name_and_folder_only() -> None:
    found = body()
    assert found.keys() == {"name", "command", "stdin", "workdir"}
    assert found["name"] == "job.sbatch"
    assert found["workdir"] == "/work"


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("ALL", {}),
        ("NONE", {"clean_env": True}),
        ("ALL,A=1", {"environment": {"A": "1"}}),
        ("A=1,HERE", {"environment": {"A": "1", "HERE": "7"}, "clean_env": True}),
    ],
)
def test_the_environment_that_it_wants(text: str, fields: dict[str, Any]) -> None:
    found = translated(f"--export={text}", HERE="7").body
    assert {k: found[k] for k in ("environment", "clean_env") if k in found} == fields


@pytest.mark.parametrize(
    ("option", "told"),
    [
        ("--ntask=2", "line 2: --ntask: is an option that gpuyard does not know (did"),
        ("-Z", "line 2: -Z: is an option that gpuyard does not know"),
        ("gpu", "line 2: has the word 'gpu', which is no option"),
        ("--nodelist=a", "line 2: --nodelist: is something that gpuyard cannot do"),
        ("--time", "line 2: --time: has no value (write --time=VALUE)"),
        ("--hold=1", "line 2: --hold: has a value, '1', and takes none"),
        ("--time=soon", "line 2: --time: is 'soon', and not a time"),
        ("--mem=0", "line 2: --mem: is 0, which means all memory"),
        ("--mem=big", "line 2: --mem: is 'big'"),
        ("--nodes=1-4", "line 2: --nodes: is '1-4', and gpuyard cannot choose"),
        ("--nodes=0", "line 2: --nodes: is '0', and not a number from 1 on"),
        ("--gres=shard:2", "line 2: --gres: is 'shard:2', and gpuyard knows GPUs only"),
        ("--gres=gpu:huge:1", "line 2: --gres: there is no GPU class 'huge'"),
        ("--gpus=a100:1,v100:1", "line 2: --gpus: is 'a100:1,v100:1', and a job has"),
        ("-N2 --gpus=3", "line 2: --gpus: is 3, and 2 nodes cannot have equal shares"),
        ("--gpus=2 --gres=gpu:1", "line 2: --gpus: means another number of GPUs than"),
        ("--array=4-1", "line 2: --array: has 4-1, which goes down (write 1-4)"),
        ("--dependency=singleton", "line 2: --dependency: has 'singleton'"),
        ("--dependency=afterok", "line 2: --dependency: has 'afterok', which names no"),
        ("--dependency=afterok:1?afterok:2", "and gpuyard waits for all of them"),
        ("--export=A", "line 2: --export: names A, which is not set here"),
        ("--signal=10@60", "line 2: --signal: names a signal by its number, 10"),
        ("--job-name='a", "line 2: is no list of options: No closing quotation"),
    ],
)
def test_what_gpuyard_cannot_do_is_named_with_its_line(option: str, told: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        translated(option)
    assert told in str(caught.value)


def test_what_makes_no_difference_is_a_note() -> None:
    notes = translated(
        "--output=%x-%j.out",
        "--mail-type=END",
        "--partition=gpu",
        "--exclusive",
        commands="echo $SLURM_JOB_GPUS $SLURM_JOB_ID\nsqueue -u me\n#SBATCH --mem=1G\n",
    ).notes
    assert [note.partition(": ")[2] for note in notes] == [
        "stands behind the first command, where sbatch does not read it either",
        "--output is not used: gpuyard keeps the output: `gpuyard logs JOB`",
        "--mail-type is not used: `gpuyard run --notify mail:ana@example.org` tells of"
        " the end of a job",
        "--partition counts only if the job runs on Slurm",
        "--exclusive is not used: other jobs may use the node, too; a GPU is never"
        " shared with another job",
        "gpuyard does not set SLURM_JOB_GPUS",
        "squeue is there only on Slurm",
    ]


def test_only_scripts_with_options_are_batch_scripts() -> None:
    assert is_batch_script("#!/bin/sh\n# about\n#SBATCH -n 2\n")
    assert not is_batch_script("#!/bin/sh\n##SBATCH -n 2\necho '#SBATCH'\n")
    assert not is_batch_script("# no interpreter\n#SBATCH -n 2\n")


def run(
    commands: str,
    *options: str,
    interpreter: str = "#!/bin/bash",
    **environment: str,
) -> subprocess.CompletedProcess[str]:
    """Run a batch script as the node would."""
    text = script(*options, commands=commands)
    text = text.replace("#!/bin/bash", interpreter)
    found = sbatch.translate(text, "job.sbatch", ["a", "b c"], HOME, {}).body
    variables = {"GPUYARD_JOB_ID": "job_1", "PATH": os.environ["PATH"], **environment}
    return subprocess.run(
        found["command"],
        input=found["stdin"],
        env=variables,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_script_runs_with_its_arguments_and_variables() -> None:
    commands = (
        'echo "$2|$SLURM_JOB_ID|$SLURM_JOB_NAME|$SLURM_CPUS_PER_TASK|$SLURM_NTASKS"\n'
        'echo "$SLURM_ARRAY_TASK_ID of $SLURM_ARRAY_TASK_COUNT|$SLURM_GPUS_ON_NODE"\n'
        'echo "{i}|${HOME:-none}"; cat; exit 3'
    )
    done = run(
        commands,
        "-c 2 -n 2 --gres=gpu:1 -J 'it'\\''s' -a 5-7",
        GPUYARD_ARRAY_INDEX="6",
    )
    assert done.stdout == "b c|job_1|it's|2|2\n6 of 3|1\n{i}|none\n"
    assert done.returncode == 3


def test_it_may_be_a_program_of_python() -> None:
    done = run(
        "import sys; print(sys.argv[1:])",
        "-n 1",
        interpreter="#!/usr/bin/env python3",
    )
    assert done.stdout == "['a', 'b c']\n"


def test_srun_starts_the_tasks_of_its_node() -> None:
    commands = (
        "srun -u --cpu-bind=none --wait 9 sh -c 'echo $SLURM_PROCID/$SLURM_NTASKS'\n"
        "srun -N1 -n1 echo one\n"
        'scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1\n'
        "srun --exclusive sh -c 'exit $((SLURM_PROCID + 1))'; echo left with $?\n"
        "srun --multi-prog x; echo left with $?\n"
        "srun -w other hostname; scontrol show job 1"
    )
    second = {"NODE_RANK": "1", "NNODES": "2", "MASTER_ADDR": "10.0.0.1"}
    done = run(commands, "-N 2 -n 4", **second)
    (first, other, *rest) = done.stdout.splitlines()
    assert {first, other} == {"2/4", "3/4"}
    assert rest == ["one", "10.0.0.1", "left with 4", "left with 2"]
    assert "--multi-prog: gpuyard does not know this option" in done.stderr
    assert "srun starts programs on that node only" in done.stderr
    assert done.returncode == 1


def test_srun_of_one_task_passes_its_input_on() -> None:
    done = run("echo in | srun cat; srun false || echo failed; srun", "-n 1")
    assert done.stdout == "in\nfailed\n"
    assert "no program is named" in done.stderr
