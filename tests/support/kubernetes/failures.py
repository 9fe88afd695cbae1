"""What a Job's `podFailurePolicy` says of a pod that failed."""

from dataclasses import dataclass

from tests.support.kubernetes.objects import Object, condition, name, namespace


@dataclass(frozen=True, slots=True)
class Verdict:
    """FailJob, Ignore or Count; `message` is for the Job's condition."""

    action: str
    message: str = ""


def judge(job: Object, pod: Object) -> Verdict:
    """The first rule that fits; Count where none does."""
    rules = (job["spec"].get("podFailurePolicy") or {}).get("rules") or []
    for index, rule in enumerate(rules):
        reason = (
            _by_code(rule, pod) if rule.get("onExitCodes") else _by_condition(rule, pod)
        )
        if reason:
            return Verdict(
                rule["action"],
                f"{reason} matching {rule['action']} rule at index {index}",
            )
    return Verdict("Count")


def _by_code(rule: Object, pod: Object) -> str:
    wanted = rule["onExitCodes"]
    statuses = [
        *pod["status"].get("initContainerStatuses", ()),
        *pod["status"].get("containerStatuses", ()),
    ]
    for status in statuses:
        ended = status.get("state", {}).get("terminated")
        if (
            not ended
            or (wanted.get("containerName") or status["name"]) != status["name"]
            or not ended["exitCode"]
        ):
            continue
        if (ended["exitCode"] in wanted["values"]) == (wanted["operator"] == "In"):
            where = f"{namespace(pod)}/{name(pod)}"
            return (
                f"Container {status['name']} for pod {where} failed with exit code"
                f" {ended['exitCode']}"
            )
    return ""


def _by_condition(rule: Object, pod: Object) -> str:
    for wanted in rule.get("onPodConditions") or ():
        found = condition(pod, wanted["type"])
        if found and found["status"] == wanted.get("status", "True"):
            return f"Pod {namespace(pod)}/{name(pod)} has condition {wanted['type']}"
    return ""
