"""What a job inherits, and what it does not."""

import pytest

from gpuyard.config.accounts import Account
from gpuyard.domain import wire
from gpuyard.node.environment import _inherited, job_environment


@pytest.fixture(autouse=True)
def agent(monkeypatch: pytest.MonkeyPatch):
    """An agent with keys of its own."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "the agent's")
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    monkeypatch.setenv("GPUYARD_STORAGE__URL", "s3://bucket")
    monkeypatch.setenv("SLURM_JWT", "the server's")
    monkeypatch.setenv("EDITOR", "vi")
    _inherited.cache_clear()
    yield
    _inherited.cache_clear()


def environment(withheld: tuple[str, ...], **given: str) -> dict[str, str]:
    start = wire.StartAttempt("a1", 1, 1, "job_1", ["true"], given)
    return job_environment(start, "node", None, None, withheld)


def test_without_a_bucket_only_keys_and_settings_are_withheld() -> None:
    found = environment(())
    assert (found["AWS_REGION"], found["EDITOR"]) == ("eu-central-1", "vi")
    keys = {"AWS_SECRET_ACCESS_KEY", "GPUYARD_STORAGE__URL", "SLURM_JWT"}
    assert not keys & found.keys()


def test_what_opens_the_bucket_is_withheld_and_what_the_job_says_is_its_own() -> None:
    found = environment(("AWS_",), AWS_SECRET_ACCESS_KEY="the job's")
    assert {
        name: value for name, value in found.items() if name.startswith("AWS_")
    } == {"AWS_SECRET_ACCESS_KEY": "the job's"}
    assert found["EDITOR"] == "vi"


def test_what_a_job_carries_stands_in_place_of_the_agents_environment() -> None:
    start = wire.StartAttempt("a1", 1, 1, "job_1", ["true"], {"LR": "0.2"}, cpus=8)
    carried = {"HOME": "/home/ann", "LR": "0.1", "OMP_NUM_THREADS": "2"}
    found = job_environment(start, "node", None, None, carried=carried)
    assert "EDITOR" not in found
    assert (found["HOME"], found["LR"]) == ("/home/ann", "0.2")
    assert (found["OMP_NUM_THREADS"], found["COLUMNS"]) == ("2", "200")
    assert found["CUDA_VISIBLE_DEVICES"] == ""


def test_who_a_job_is_says_its_account_and_not_what_it_carries() -> None:
    start = wire.StartAttempt("a1", 1, 1, "job_1", ["true"], {})
    account = Account("bob", 1001, 1001, (), "/home/bob", "/bin/sh")
    carried = {"HOME": "/root", "USER": "root", "PATH": "/root/bin", "LR": "0.1"}
    found = job_environment(start, "node", None, None, (), account, carried)
    assert (found["HOME"], found["USER"], found["LR"]) == ("/home/bob", "bob", "0.1")
    assert "/root" not in found["PATH"]
