"""The record of a run."""

import pytest

from gpuyard.domain.records import (
    AttemptRecord,
    PackagesRecord,
    RunRecord,
    differences,
    seed_of,
)
from gpuyard.domain.secret_names import mask_keys


def record(driver: str, **installed: str) -> RunRecord:
    attempt = AttemptRecord(
        number=1,
        node="node_1",
        gpus=[],
        started_at=1.0,
        ended_at=2.0,
        exit_code=0,
        facts={"driver": driver, "host": "alpha"},
    )
    lines = [f"{name}=={version}" for name, version in installed.items()]
    packages = PackagesRecord(digest="0", stored=True, installed=lines)
    return RunRecord(
        id="job_1",
        name="x",
        state="completed",
        command=["true"],
        packages=packages,
        attempts=[attempt],
        metrics={"loss": 0.5},
    )


def test_what_differs_is_named() -> None:
    found = differences(record("550", a="1", b="1"), record("560", a="2", c="1"))
    assert [(each.what, each.before, each.now) for each in found] == [
        ("driver", "550", "560"),
        ("package a", "1", "2"),
        ("package b", "1", ""),
        ("package c", "", "1"),
    ]
    assert not differences(record("550", a="1"), record("550", a="1"))


@pytest.mark.parametrize(
    ("command", "environment", "seed"),
    [
        (["python", "train.py", "--seed", "3"], {}, "3"),
        (["python", "train.py", "--seed=4"], {}, "4"),
        (["python", "train.py", "seed=5"], {}, "5"),
        (["python", "train.py", "--seed", "3"], {"GPUYARD_SEED": "6"}, "6"),
        (["python", "train.py", "--seed"], {}, None),
        (["python", "seed", "3"], {}, None),
    ],
)
def test_the_seed_is_what_the_command_or_its_variables_name(
    command: list[str], environment: dict[str, str], seed: str | None
) -> None:
    assert seed_of(command, environment) == seed


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ('+API_KEY = "abc"', '+API_KEY = "***"'),
        ("hf_token: abc, x: 1", "hf_token: ***, x: 1"),
        ("--api-key=abc", "--api-key=***"),
        ("url = 'https://me:abc@host/x'", "url = 'https://***@host/x'"),
        ("KEY = 'my own key'", "KEY = '***'"),
        ('api_key: str = f"abc"', 'api_key: *** = f"***"'),
        ("token: YWJj==", "token: ***"),
        ("url = 'https://me:a@bc@host/x'", "url = 'https://***@host/x'"),
        ("Authorization: Bearer abcdefghijkl", "Authorization: Bearer ***"),
        (
            "-----BEGIN PRIVATE KEY-----\n+ab\n+-----END PRIVATE KEY-----\n+x",
            "***\n+x",
        ),
        ("a" * 200_000, "a" * 200_000),
        ("a-" * 100_000, "a-" * 100_000),
        ("use('hf_abcdefghijklmnop')", "use('***')"),
        ("max_tokens = 5; monkey = 1", "max_tokens = 5; monkey = 1"),
    ],
)
def test_what_looks_like_a_key_is_hidden_in_a_program(text: str, hidden: str) -> None:
    assert mask_keys(text) == hidden
