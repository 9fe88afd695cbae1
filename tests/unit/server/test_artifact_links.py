"""Links to artifacts, by themselves."""

from urllib.parse import parse_qs, urlsplit

import pytest

from gpuyard.config.proof import digest_of
from gpuyard.domain.errors import ForbiddenError
from gpuyard.server.artifact_links import LINK_PATH, issue, read

FIRST = digest_of("first")
SECOND = digest_of("second")


def link_of(url: str) -> str:
    return parse_qs(urlsplit(url).query)["link"][0]


def test_each_server_of_the_instance_opens_what_another_has_issued() -> None:
    url = issue(FIRST, "https://gpus.example/", "art_1", 100.0)
    assert url.startswith(f"https://gpus.example{LINK_PATH}?link=")
    assert read([SECOND, FIRST], link_of(url), 99.0) == "art_1"


def test_one_error_for_what_was_altered_has_expired_or_is_anothers() -> None:
    link = link_of(issue(FIRST, "http://x", "art_1", 100.0))
    content, signature = link.split(".")
    other = link_of(issue(FIRST, "http://x", "art_2", 1e9)).split(".")[0]
    told: set[str] = set()
    for forged, now in (
        (link, 100.0),
        (f"{other}.{signature}", 1.0),
        (f"{content}.{signature[:-1]}", 1.0),
        (f"{content}.", 1.0),
        (content, 1.0),
        ("", 1.0),
        ("ä.\ud800", 1.0),
    ):
        with pytest.raises(ForbiddenError) as refused:
            read([FIRST], forged, now)
        told.add(str(refused.value))
    assert len(told) == 1
    with pytest.raises(ForbiddenError):
        read([SECOND], link, 1.0)
