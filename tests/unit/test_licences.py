"""The licence of each locked package is known, and either permissive or reviewed."""

import pytest

from scripts import licences
from scripts.licences import Package

RULES = {
    "permissive": ["MIT", "BSD-3-Clause"],
    "reviewed": {
        "archive": {"licence": "GPL-3.0-or-later", "only": ["extra zim"]},
        "driver-*": {"licence": "LicenseRef-Proprietary", "only": ["image jobs"]},
        "codec": {"licence": "MIT", "only": ["extra video"]},
    },
}


def judged(name: str, licence: str, *places: str) -> str | None:
    return licences.problem(
        Package(name, "1.0", licence, frozenset(places or {"gpuyard"})), RULES
    )


def test_the_page_has_every_locked_package_and_no_other() -> None:
    listed = licences.PAGE.read_text()
    assert licences.known_licences().keys() == licences.locked_places().keys(), (
        "run scripts/licences.py"
    )
    assert licences.page(licences.packages()) == listed, "run scripts/licences.py"


def test_every_locked_package_may_come_with_what_brings_it() -> None:
    found = [licences.problem(package) for package in licences.packages()]
    assert not [fault for fault in found if fault]


def test_what_comes_with_gpuyard_itself_is_under_neither_gpl_nor_lgpl() -> None:
    always = [one for one in licences.packages() if licences.BASE in one.brought_by]
    assert len(always) > 30
    assert not [one.name for one in always if "GPL" in one.licence]


@pytest.mark.parametrize(
    "licence", ["MIT", "MIT AND BSD-3-Clause", "MIT OR GPL-3.0-only"]
)
def test_a_permissive_licence_needs_no_review(licence: str) -> None:
    assert judged("new", licence) is None


@pytest.mark.parametrize(
    "licence",
    [
        licences.UNKNOWN,
        "GPL-3.0-only",
        "MIT AND LGPL-3.0-only",
        "(MIT OR BSD-3-Clause) AND GPL-2.0-only",
        "SSPL-1.0",
    ],
)
def test_any_other_licence_needs_one(licence: str) -> None:
    assert "review it in scripts/licences.toml" in str(judged("new", licence))


@pytest.mark.parametrize(
    ("name", "licence", "place", "fault"),
    [
        ("archive", "GPL-3.0-or-later", "extra zim", None),
        ("archive", "GPL-3.0-or-later", "gpuyard", "must not come with gpuyard"),
        ("archive", "AGPL-3.0-only", "extra zim", "was reviewed under GPL"),
        ("codec", "MIT", "image gpuyard", "must not come with image gpuyard"),
        ("driver-x", "LicenseRef-Proprietary", "image jobs", None),
        ("driver-x", "LicenseRef-Proprietary", "extra zim", "must not come with"),
        ("driver-y", "MIT", "gpuyard", None),
    ],
)
def test_a_review_holds_for_its_licence_and_its_places(
    name: str, licence: str, place: str, fault: str | None
) -> None:
    found = judged(name, licence, place)
    assert found is None if fault is None else fault in str(found)


@pytest.mark.parametrize(
    ("stated", "classifiers", "text", "meant"),
    [
        ("MIT", [], "something else", "MIT"),
        (None, [], "Apache License 2.0\n\nmuch text", "Apache-2.0"),
        (None, ["License :: OSI Approved :: BSD License"], "", "LicenseRef-BSD"),
        (None, ["License :: OSI Approved"], "All rights reserved", licences.UNKNOWN),
        (None, [], None, licences.UNKNOWN),
    ],
)
def test_a_licence_is_read_from_what_the_metadata_have(
    stated: str | None, classifiers: list[str], text: str | None, meant: str
) -> None:
    assert licences.expression(stated, classifiers, text) == meant


def test_what_an_image_brings_is_not_said_to_come_with_gpuyard() -> None:
    (torch, *_) = [one for one in licences.packages() if one.name == "torch"]
    assert all(place.startswith("image ") for place in torch.brought_by)
