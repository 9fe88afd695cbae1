"""The settings of the agent on a rented machine."""

import pytest

from gpuyard.config.paths import Home
from gpuyard.config.settings import load_settings
from gpuyard.domain.errors import InvalidInputError


def rented(tmp_path, text):
    home = Home(tmp_path)
    home.settings.write_text(f"[node.rented]\n{text}")
    return load_settings(home).node.rented


def test_a_machine_that_is_not_rented_has_none(tmp_path):
    found = rented(tmp_path, "")
    assert (found.heartbeat_file, found.spot_notices) == (None, None)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('heartbeat_file = "run/heartbeat"', "heartbeat_file"),
        ('spot_notices = "azure"', "spot_notices"),
        ('metadata_url = "169.254.169.254"', "metadata_url"),
        ("look_s = 0", "look_s"),
        ("silence_s = 5", "silence_s"),
    ],
)
def test_a_wrong_setting_is_named(tmp_path, text, said):
    with pytest.raises(InvalidInputError, match=rf"node\.rented\.{said}"):
        rented(tmp_path, text)
