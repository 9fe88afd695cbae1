"""What people are told about everybody's shares, in virtual time."""

import pytest

from gpuyard.config.settings import Settings
from gpuyard.controller.share_listing import fair_shares
from gpuyard.controller.visibility import EVERYTHING, Visibility
from gpuyard.scheduler.parties import ProjectShare, ShareRules
from gpuyard.scheduler.standings import standings
from gpuyard.scheduler.usage import Usage
from gpuyard.scheduler.view import View
from tests.unit.scheduler.shared_lab import DAY, HOUR, Lab

PROJECTS = {
    "vision": ProjectShare(3.0, {"ana": 2.0}, "physics"),
    "text": ProjectShare(1.0, organisation="physics"),
    "alone": ProjectShare(1.0),
}


@pytest.fixture
def lab() -> Lab:
    """Vision and physics have used all, by ana and bob; carl's job has just begun."""
    made = Lab(3, ShareRules(DAY, PROJECTS, organisations={"physics": 2.0}))
    made.submit("ana", HOUR, "vision")
    made.submit("bob", HOUR, "vision")
    made.run(2 * HOUR)
    made.submit("carl", HOUR)
    made.decide()
    return made


def test_each_level_is_told_its_part_of_all(lab: Lab) -> None:
    found = {
        (one.level.value, one.project, one.name): one
        for one in standings(lab.world.view, lab.now)
    }
    assert list(found) == [
        ("organisation", "", "physics"),
        ("project", "text", "text"),
        ("project", "vision", "vision"),
        ("user", "vision", "ana"),
        ("user", "vision", "bob"),
        ("project", "alone", "alone"),
        ("user", "", "carl"),
    ]
    due = {name: one.due for (_, _, name), one in found.items()}
    assert due == pytest.approx(
        {
            "physics": 1 / 2,
            "text": 1 / 8,
            "vision": 3 / 8,
            "ana": 2 / 8,
            "bob": 1 / 8,
            "alone": 1 / 4,
            "carl": 1 / 4,
        }
    )
    used = {name: one.used for (_, _, name), one in found.items()}
    assert used["physics"] == used["vision"] == pytest.approx(1.0)
    assert used["ana"] == pytest.approx(0.5)
    assert used["carl"] == used["text"] == 0.0


def test_who_works_outside_of_projects_has_a_line_there(lab: Lab) -> None:
    lab.submit("ana", HOUR)
    lab.run(2 * HOUR)
    lines = [one for one in standings(lab.world.view, lab.now) if one.name == "ana"]
    inside, outside = lines
    assert (inside.project, outside.project) == ("vision", "")
    assert outside.gpu_seconds > inside.gpu_seconds


def test_a_project_that_is_hidden_stays_so(lab: Lab) -> None:
    settings = Settings.model_validate({"scheduler": {"policy": "fair"}})
    hidden = Visibility("carl", frozenset({"vision"}))
    found = fair_shares(lab.world.view, settings, hidden, lab.now)
    assert "vision" not in found.model_dump_json()
    whole = found.items[0]
    assert (whole.organisation, whole.times) == ("physics", pytest.approx(2.0))


def test_under_other_policies_there_are_none() -> None:
    view = View(Usage(ShareRules(DAY, PROJECTS)))
    found = fair_shares(view, Settings(), EVERYTHING, 0.0)
    assert (found.policy, found.items) == ("gittins", [])
