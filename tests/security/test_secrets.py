"""A job that looks for the secrets of other jobs in the home and among all processes of
its user.
"""

from tests.support.unprivileged import search_from_a_job, unprivileged_instance, up
from tests.support.wait import wait_until

VALUE = "planted-value-of-a-job"
# It shows the value at once, and once more after its agent was killed.
LEAKY = """
import os, pathlib, time
print(os.environ["HF_TOKEN"], flush=True)
print("GPUYARD_METRIC", '{"loss": 1, "note": "%s"}' % os.environ["HF_TOKEN"])
pathlib.Path(os.environ["HF_TOKEN"] + ".pt").write_text("weights")
pathlib.Path("printed").touch()
while not pathlib.Path("go").exists():
    time.sleep(0.02)
print("end", os.environ["HF_TOKEN"])
raise SystemExit(os.environ["HF_TOKEN"])
"""


def test_a_secret_is_nowhere_after_its_job() -> None:
    with unprivileged_instance() as instance:
        up(instance)
        instance.ok("secret", "set", "HF_TOKEN", input=f"{VALUE}\n")
        job_id = instance.ok(
            *("run", "-d", "--secret", "HF_TOKEN", "--checkpoint", "*.pt"),
            *("--", "python3", "-c", LEAKY),
        ).strip()
        wait_until((instance.work / "printed").exists, what="the first output")
        first = instance.pid("agent")
        instance.kill("agent")
        wait_until(lambda: instance.pid("agent") not in (None, first), what="an agent")
        while_running = wait_until(
            lambda: instance.run("logs", job_id).stdout, what="the agent to connect"
        )
        (instance.work / "go").touch()
        assert instance.wait(job_id).reason == "exit_code"
        output = instance.ok("logs", job_id)
        stars = "*" * len(VALUE)
        assert while_running.startswith(stars)
        assert output.splitlines()[-2:] == [f"end {stars}", stars]
        backup = instance.work / "backup.db"
        instance.ok("ledger", "backup", str(backup))
        shown = instance.ok("show", job_id, "--json") + instance.ok("events")
        assert f"{stars}.pt" in instance.ok("checkpoints", job_id)
        assert VALUE not in output + while_running + shown
        assert VALUE.encode() not in backup.read_bytes()
        assert search_from_a_job(instance, [VALUE]) == []
