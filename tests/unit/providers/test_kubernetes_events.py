"""What the events of a cluster mean, and how Jobs end that it describes oddly."""

import pytest

from gpuyard.domain.jobconfig import JobStatus
from gpuyard.providers.kubernetes.events import (
    final_refusal,
    missing_image,
    newest_last,
)
from gpuyard.providers.kubernetes.job_state import result_of

AT = "2026-01-01T00:00:"


def test_events_are_ordered_by_when_they_were_last_seen_in_whatever_form_they_are():
    found = newest_last(
        [
            {"message": "4", "lastTimestamp": None, "eventTime": f"{AT}40.000001Z"},
            {"message": "1", "lastTimestamp": f"{AT}10Z", "eventTime": None},
            {
                "message": "3",
                "eventTime": f"{AT}05.000000Z",
                "series": {"count": 2, "lastObservedTime": f"{AT}30.000000Z"},
            },
            {"message": "2", "metadata": {"creationTimestamp": f"{AT}20Z"}},
            {"message": "0"},
        ]
    )
    assert [event["message"] for event in found] == ["0", "1", "2", "3", "4"]


@pytest.mark.parametrize(
    ("component", "message", "is_final"),
    [
        ("kubelet", 'Failed to pull image "x": x: not found', True),
        ("kubelet", 'Failed to pull image "x": dial tcp: i/o timeout', False),
        ("kubelet", 'MountVolume.SetUp failed: secret "x" not found', False),
        ("default-scheduler", 'persistentvolumeclaim "x" not found', False),
    ],
)
def test_only_the_kubelet_knows_of_images(component, message, is_final):
    event = {"source": {"component": component}, "message": message}
    assert missing_image([event], "Back-off") == (message if is_final else "")


@pytest.mark.parametrize(
    ("message", "is_final"),
    [
        ('pods "x" is forbidden: violates PodSecurity "restricted:latest": …', True),
        ('admission webhook "x" denied the request: no', True),
        ('pods "x" is forbidden: exceeded quota: few', False),
        ('failed calling webhook "x": connection refused', False),
    ],
)
def test_some_refusals_are_final(message, is_final):
    events = [
        {"reason": "FailedCreate", "message": "violates PodSecurity, as it did before"},
        {"reason": "FailedCreate", "message": message},
    ]
    assert final_refusal(events) == (message if is_final else "")


def ended(state: dict, phase: str = "Failed", **metadata: object) -> dict:
    return {
        "metadata": {"name": "p", **metadata},
        "spec": {"nodeName": "one"},
        "status": {
            "phase": phase,
            "containerStatuses": [
                # The cluster may put containers of its own into pods.
                {"name": "a-sidecar", "state": {"running": {}}},
                {"name": "job", "state": {"terminated": state}},
            ],
        },
    }


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ('exec: "x": executable file not found in $PATH: unknown', "command_not_found"),
        ('exec: "/x": stat /x: no such file or directory', "command_not_found"),
        ('exec: "/x": permission denied: unknown', "not_executable"),
        ("exec /x: exec format error", "not_executable"),
        ('chdir to cwd ("/x") set in config.json failed', "workdir_missing"),
        ("error mounting proc: operation not permitted", "not_started"),
    ],
)
def test_a_container_that_cannot_be_started_has_no_exit_code(message, reason):
    pod = ended({"exitCode": 128, "reason": "StartError", "message": message})
    result = result_of({"metadata": {"name": "j"}}, [pod], ())
    assert (result.status, result.reason) == (JobStatus.FAILED, reason)
    assert (result.exit_code, result.started_at) == (None, None)


def test_a_program_that_had_ended_before_its_pod_was_deleted_has_completed():
    state = {"exitCode": 0, "startedAt": f"{AT}00Z", "finishedAt": f"{AT}10Z"}
    at_once = ended(state, "Succeeded", deletionTimestamp=f"{AT}11Z")
    at_once["metadata"]["deletionGracePeriodSeconds"] = 0
    later = ended(state, "Succeeded", deletionTimestamp=f"{AT}41Z")
    later["metadata"]["deletionGracePeriodSeconds"] = 30
    for pod in (at_once, later):
        result = result_of({"metadata": {"name": "j"}}, [pod], ())
        assert result.status is JobStatus.COMPLETED


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ("The node was low on resource: ephemeral-storage. ", "preempted"),
        ('Usage of EmptyDir volume "work" exceeds the limit "1Gi". ', ""),
        (
            'Container job exceeded its local ephemeral storage limit "1Gi". ',
            "",
        ),
    ],
)
def test_a_program_that_fills_its_own_limit_of_disk_has_failed(message, reason):
    pod = ended({"exitCode": 137, "startedAt": f"{AT}00Z", "finishedAt": f"{AT}10Z"})
    pod["status"] |= {"reason": "Evicted", "message": message}
    result = result_of({"metadata": {"name": "j"}}, [pod], ())
    assert (result.status, result.reason) == (JobStatus.FAILED, reason)
    assert message.strip() in result.error_message
