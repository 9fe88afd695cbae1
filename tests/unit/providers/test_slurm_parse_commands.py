"""What Slurm's commands print, read."""

import pytest

from gpuyard.domain.attempt_order import AttemptOrder
from gpuyard.domain.jobconfig import GpuSpec, JobStatus
from gpuyard.providers.slurm import parse_commands, records
from gpuyard.providers.slurm.client import SlurmRequest
from gpuyard.providers.slurm.commands import options


def test_the_queue_is_read_whatever_the_reason_holds():
    lines = "12|RUNNING|1700000000|node[1-2]|attempt_a|None\n13|PENDING|N/A||attempt_b|Resources|odd\nnonsense\n"
    running, pending = parse_commands.read_queue(lines)
    assert (running.status, running.started_at, running.nodes) == (
        JobStatus.RUNNING,
        1700000000,
        "node[1-2]",
    )
    assert (pending.status, pending.attempt_id, pending.reason) == (
        JobStatus.PENDING,
        "attempt_b",
        "Resources|odd",
    )


def order(**fields) -> AttemptOrder:
    return AttemptOrder(attempt_id="attempt_1", name="j", command=("true",), **fields)


@pytest.mark.parametrize(
    ("state", "status"),
    [
        ("CONFIGURING", JobStatus.PENDING),
        ("COMPLETING", JobStatus.RUNNING),
        ("COMPLETED", JobStatus.COMPLETED),
        ("NODE_FAIL", JobStatus.FAILED),
        ("SOMETHING_NEW", JobStatus.UNKNOWN),
    ],
)
def test_states(state, status):
    assert records.SlurmRow("1", state).status is status


def test_accounts_and_single_jobs_are_read():
    (row,) = parse_commands.read_accounting(
        "7|CANCELLED by 0|1700000000|1700000009|0:15|node1\nbroken|line\n"
    )
    assert (row.state, row.ended_at, row.exit_code, row.signal) == (
        "CANCELLED",
        1700000009,
        0,
        15,
    )
    rows = parse_commands.read_accounting(
        "7_1|COMPLETED|1|2|0:0|node1\n7_[3-4,9%2]|CANCELLED|Unknown|9|0:0|None"
        " assigned\n"
    )
    assert [row.job_id for row in rows] == ["7_1", "7_3", "7_4", "7_9"]
    assert [row.index for row in rows] == ["1", "3", "4", "9"]
    row = parse_commands.read_job(
        "JobId=9 JobName=a b JobState=FAILED Reason=NonZeroExitCode ExitCode=3:0"
        " NodeList=node2\n"
    )
    assert (row.job_id, row.state, row.exit_code) == ("9", "FAILED", 3)
    assert (
        parse_commands.read_job("slurm_load_jobs error: Invalid job id specified")
        is None
    )


def test_nodes_alike_of_a_partition_are_one():
    found = parse_commands.read_hardware(
        "gpu*|3|64|512000|gpu:a100:4(S:0-1)|mix|2-00:00:00\ngpu*|1|64|512000|gpu:a100:4(S:0-1)|down*|2-00:00:00\ncpu|2|32+|128000+|(null)|drain|infinite\nbad"
        " line\n"
    )
    gpu, cpu = found
    assert (gpu.partition, gpu.default, gpu.nodes, gpu.up, gpu.gpu, gpu.gpus) == (
        "gpu",
        True,
        4,
        3,
        "a100",
        4,
    )
    assert (gpu.limit_s, gpu.why_down) == (2 * 86400, "")
    assert (cpu.up, cpu.limit_s, cpu.why_down, cpu.gpus) == (
        0,
        None,
        "all its nodes are drain",
        0,
    )


@pytest.mark.parametrize(
    ("gres", "found"),
    [
        ("gpu:a100:2(S:0-1)", ("a100", 2)),
        ("gpu:4", ("", 4)),
        ("tmp:1,gpu:v100:1,gpu:v100:1", ("v100", 2)),
        ("gpu:a100:2,gpu:v100:2", ("", 4)),
        ("(null)", ("", 0)),
        ("", ("", 0)),
    ],
)
def test_gres(gres, found):
    assert records.read_gres(gres) == found


@pytest.mark.parametrize(
    ("minutes", "most_s", "option"),
    [
        (10, None, "--time=12"),
        (10, 3600, "--time=12"),
        (60, 3600, "--time=60"),
        (61, 3600, "--time=63"),
    ],
)
def test_slurms_own_limit_leaves_time_to_save_where_the_partition_allows_it(
    minutes, most_s, option
):
    timeout_s = minutes * 60 if minutes else None
    assert option in options(
        SlurmRequest.of(order(timeout_s=timeout_s), "", 90, most_s)
    )


def test_what_a_job_needs_becomes_options():
    wish = order(gpu_spec=GpuSpec(gpu_count=2, vcpus=2.5, ram_gb=1.5), nodes=3)
    request = SlurmRequest.of(wish, "a100", 0, None)
    wanted = [
        "--nodes=3",
        "--ntasks-per-node=1",
        "--cpus-per-task=3",
        "--mem=1536M",
        "--gres=gpu:a100:2",
    ]
    assert options(request)[-len(wanted) :] == wanted
    assert options(SlurmRequest("j", gpus=1))[-1] == "--gres=gpu:1"
    assert (
        SlurmRequest.of(
            order(gpu_spec=GpuSpec(gpu_count=0)),
            "a100",
            0,
            None,
        ).gres
        == ""
    )


@pytest.mark.parametrize(
    ("said", "why", "resources"),
    [
        (
            (
                "sbatch: error: Batch job submission failed: Requested node"
                " configuration is not available"
            ),
            "Requested node configuration is not available",
            True,
        ),
        (
            (
                "sbatch: error: invalid partition specified: nope\nsbatch: error: Batch"
                " job submission failed: Invalid partition name specified"
            ),
            "Invalid partition name specified",
            False,
        ),
        ("", "sbatch failed", False),
    ],
)
def test_refusals(said, why, resources):
    assert parse_commands.read_refusal(said) == (why, resources)


def test_slurm_itself_out_of_reach_is_told_from_a_refusal():
    assert parse_commands.is_unreachable(
        "squeue: error: Unable to contact slurm controller (connect failure)"
    )
    assert not parse_commands.is_unreachable("sbatch: error: Invalid account")
    assert records.explain_reason("Priority") == "Priority: others come before it"
    assert records.explain_reason("SomethingNew") == "SomethingNew"


def test_nodes_that_differ_have_names_that_differ_and_keep_them():
    found = parse_commands.read_hardware(
        "gpu|1|64|1024000|gpu:a100:8|idle|infinite\ngpu|1|32|512000|gpu:a100:4|idle|infinite\n"
        "cpu|4|16|64000|(null)|idle|infinite\nbig|1|8|32000|gpu:4|idle|infinite\n"
    )
    assert list(records.name_hardware(found)) == [
        "gpu/a100x8-64c-1000g",
        "gpu/a100x4-32c-500g",
        "cpu",
        "big/gpu",
    ]


@pytest.mark.parametrize(
    ("said", "resources"),
    [
        (
            (
                "sbatch: error: QOSMaxSubmitJobPerUserLimit\nsbatch: error: Batch job"
                " submission failed: Job violates accounting/QOS policy (job submit"
                " limit, user's size and/or time limits)"
            ),
            True,
        ),
        ("sbatch: error: Batch job submission failed: Invalid account", False),
    ],
)
def test_a_limit_on_how_many_may_wait_is_not_the_jobs_fault(said, resources):
    assert parse_commands.read_refusal(said)[1] is resources
