"""Which names look like keys, and what a secret may be called."""

import pytest

from gpuyard.domain.errors import InvalidInputError
from gpuyard.domain.secret_names import looks_like_key, without_keys
from gpuyard.domain.validation import parse_spec


@pytest.mark.parametrize(
    "name",
    [
        "HF_TOKEN",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_ACCESS_KEY_ID",
        "WANDB_API_KEY",
        "PGPASSWORD",
        "db_password",
        "SLURM_JWT",
        "GOOGLE_APPLICATION_CREDENTIALS",
        "APIKEY",
    ],
)
def test_these_look_like_keys(name: str) -> None:
    assert looks_like_key(name)


@pytest.mark.parametrize(
    "name",
    ["PATH", "MAX_TOKENS", "TOKENIZERS_PARALLELISM", "KEYBOARD", "SSH_AUTH_SOCK"],
)
def test_these_do_not(name: str) -> None:
    assert not looks_like_key(name)


def test_values_of_keys_are_replaced() -> None:
    shown = without_keys({"HF_TOKEN": "value", "EPOCHS": "3"})
    assert shown == {"HF_TOKEN": "***", "EPOCHS": "3"}


@pytest.mark.parametrize(
    ("secrets", "fault"),
    [
        ({"HF_TOKEN": "hf planted"}, "secrets.HF_TOKEN: is not the name of a secret"),
        ({"A-B": "NAME"}, "secrets: 'A-B' is not a variable name"),
        ({"GPUYARD_X": "NAME"}, "secrets.GPUYARD_X: is set by gpuyard itself"),
        ({"GIVEN": "NAME"}, "secrets.GIVEN: is set in environment, too"),
    ],
)
def test_bad_secrets_of_a_spec_are_told_without_their_text(
    secrets: dict[str, str], fault: str
) -> None:
    with pytest.raises(InvalidInputError) as refusal:
        parse_spec(
            {"command": ["true"], "environment": {"GIVEN": "1"}, "secrets": secrets}
        )
    assert fault in str(refusal.value)
    assert "planted" not in str(refusal.value)
