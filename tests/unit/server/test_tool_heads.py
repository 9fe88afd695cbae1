"""Host names of tools, and the heads that go to a job and come from one."""

import pytest

from gpuyard.domain.errors import ForbiddenError, RequestRefusedError, WrongHostError
from gpuyard.server.tools import heads
from gpuyard.server.tools.door import check_service_worker
from gpuyard.server.tools.heads import Head
from gpuyard.server.tools.places import ToolAddresses, ToolPlace
from gpuyard.server.tools.sessions import (
    LINK_LASTS_S,
    MOST_OF_ONE,
    ToolSession,
    ToolSessions,
)

DIGITS = "0198c1" + 26 * "0"
PLACE = ToolPlace(f"job_{DIGITS}", 6006)
ORIGIN = f"http://{DIGITS}-6006.localhost:8401"


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("http://localhost:8401", f"{DIGITS}-6006.localhost:8401"),
        ("https://Tools.example.org", f"{DIGITS}-6006.tools.example.org"),
        ("https://tools.example.org:443/", f"{DIGITS}-6006.tools.example.org:443"),
    ],
)
def test_a_place_has_one_host_name(url: str, host: str) -> None:
    addresses = ToolAddresses(url)
    assert addresses.place(host) == PLACE
    assert addresses.place(host.upper()) == PLACE
    assert addresses.origin(PLACE).partition("//")[2] == host.removesuffix(":443")


@pytest.mark.parametrize(
    "host",
    [
        "",
        "localhost:8401",
        f"{DIGITS}-6006.localhost",
        f"{DIGITS}-6006.localhost:8401.evil.example",
        f"{DIGITS}-06006.localhost:8401",
        f"{DIGITS}-66000.localhost:8401",
        f"{DIGITS[1:]}-6006.localhost:8401",
    ],
)
def test_other_names_are_nobodys(host: str) -> None:
    with pytest.raises(WrongHostError):
        ToolAddresses("http://localhost:8401").place(host)


@pytest.mark.parametrize(
    "raw",
    [
        b"GET / HTTP/1.1\nHost: a\r\n\r\n",
        b"GET http://a/ HTTP/1.1\r\n\r\n",
        b"CONNECT a:80 HTTP/1.1\r\n\r\n",
        b"GET / HTTP/2\r\n\r\n",
        b"GET / HTTP/1.1\r\n folded: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nX : y\r\n\r\n",
        b"GET / HTTP/1.1\r\nX: a\x00b\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: +1\r\n\r\n",
    ],
)
def test_what_could_be_read_in_two_ways_is_refused(raw: bytes) -> None:
    with pytest.raises(RequestRefusedError):
        heads.read_request(raw)


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ("a=1; Domain=example.org; Path=/x; HttpOnly", ["a=1; Path=/x; HttpOnly"]),
        ("a=1;domain = example.org", ["a=1"]),
        ("gpuyard_8400_session=x", []),
        ("__HOST-gpuyard_session=x", []),
        ("=gpuyard_tool=x", []),
    ],
)
def test_cookies_of_a_job_are_its_own(given: str, sent: list[str]) -> None:
    answer = Head("HTTP/1.1 200 OK", [("set-cookie", given)])
    got = heads.for_browser(answer, 6006, ORIGIN).headers
    assert [value for name, value in got if name == "set-cookie"] == sent


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ("http://127.0.0.1:6006/a?b", f"{ORIGIN}/a?b"),
        ("http://localhost:6006", ORIGIN),
        ("http://127.0.0.1:6006//evil.example/", f"{ORIGIN}//evil.example/"),
        ("http://127.0.0.1:60061/a", "http://127.0.0.1:60061/a"),
        ("https://example.org/", "https://example.org/"),
        ("next", "next"),
    ],
)
def test_the_job_leads_to_its_own_pages(given: str, sent: str) -> None:
    answer = Head("HTTP/1.1 302 Found", [("location", given)])
    assert heads.for_browser(answer, 6006, ORIGIN).get("location") == sent


def test_protection_is_said_once() -> None:
    ours = "Cross-Origin-Resource-Policy"
    answer = Head("HTTP/1.1 200 OK", [(ours.lower(), "same-origin")])
    got = heads.for_browser(answer, 6006, ORIGIN).headers
    assert [name for name, _ in got if name.lower() == ours.lower()] == [ours]


def test_a_session_ends_in_time_and_with_what_its_user_may() -> None:
    now = 0.0
    may = True
    sessions = ToolSessions(100.0, clock=lambda: now)
    late = sessions.code(PLACE, lambda: may)
    code = sessions.code(PLACE, lambda: may)
    cookie = sessions.redeem(code, PLACE)
    assert sessions.redeem(code, PLACE) is None
    assert sessions.find(cookie, PLACE)
    assert not sessions.find(code, PLACE)
    assert not sessions.find(cookie, ToolPlace(PLACE.job_id, 1))
    now = LINK_LASTS_S
    assert sessions.redeem(late, PLACE) is None
    assert sessions.find(cookie, PLACE)
    now = 100.0
    assert not sessions.find(cookie, PLACE)
    cookie = sessions.redeem(sessions.code(PLACE, lambda: may), PLACE)
    may = False
    assert not sessions.find(cookie, PLACE)


def test_many_links_of_one_person_end_no_session_of_another() -> None:
    sessions = ToolSessions(100.0)

    def signed_in(person: str) -> ToolSession | None:
        cookie = sessions.redeem(sessions.code(PLACE, lambda: True, person), PLACE)
        return sessions.find(cookie, PLACE)

    ann = sessions.redeem(sessions.code(PLACE, lambda: True, "ann"), PLACE)
    bea = sessions.redeem(sessions.code(PLACE, lambda: True, "bea"), PLACE)
    for _ in range(MOST_OF_ONE):
        assert signed_in("ann")
    assert not sessions.find(ann, PLACE)  # it made room
    assert sessions.find(bea, PLACE)


@pytest.mark.parametrize("path", ["/sw.js", "/.gpuyard/sw.js"])
def test_no_service_worker_reads_links(path: str) -> None:
    asks = Head(f"GET {path} HTTP/1.1", [("service-worker", "script")])
    with pytest.raises(ForbiddenError, match="cannot be for all pages"):
        check_service_worker(asks, path)
    check_service_worker(Head(asks.first, []), path)
    check_service_worker(asks, "/static/sw.js")
    answer = Head("HTTP/1.1 200 OK", [("service-worker-allowed", "/")])
    got = heads.for_browser(answer, 6006, ORIGIN)
    assert not got.get("service-worker-allowed")
