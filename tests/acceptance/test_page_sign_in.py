"""Signing in to the page, and what is safe and fit for all on it."""

import re
from collections.abc import Iterator

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from tests.support.browser import shared_browser as browser
from tests.support.instance import TestInstance, make_instance
from tests.support.page_checks import check_for_all, signed_in
from tests.support.page_fixtures import TOO_WIDE, page, submit
from tests.support.ports import free_port
from tests.support.web import http

__all__ = ["browser", "page"]

# The others are looked at where people use them, in the other `test_page_*.py`.
SCREENS = ["/", "/jobs", "/ui"]


@pytest.fixture(scope="module")
def instance() -> Iterator[TestInstance]:
    with make_instance() as made:
        made.ok("up", "--simulate-gpus", "8x24")
        yield made


@pytest.fixture
def guest(browser: Browser) -> Iterator[Page]:
    """A page on which nobody is signed in."""
    with browser.new_page() as made:
        yield made


def open_page(page: Page, instance: TestInstance, path: str = "/") -> None:
    address = instance.address()
    page.goto(f"{address.url}{path}")
    page.get_by_label("Token").fill(address.token)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("navigation")).to_be_visible()


def test_one_signs_in_with_a_token_and_out(instance: TestInstance, guest: Page) -> None:
    page = guest
    page.goto(instance.address().url)
    page.get_by_label("Token").fill("a-token-that-nobody-has")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_contain_text("Nobody has this token.")
    open_page(page, instance)
    assert page.evaluate("document.cookie") == "", "the session is no script's to read"
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_label("Token")).to_be_visible()
    page.reload()
    expect(page.get_by_label("Token")).to_be_visible()


def test_a_link_signs_one_browser_in(
    instance: TestInstance, browser: Browser, guest: Page
) -> None:
    link = instance.json("page")["url"]
    guest.goto(link)
    expect(guest.get_by_role("heading", name="Overview")).to_be_visible()
    assert "code" not in guest.url
    with browser.new_page() as other:
        other.goto(link)
        expect(other.get_by_label("Token")).to_be_visible()
        expect(other.get_by_role("alert")).to_contain_text("This link is used up")


def test_a_link_of_somebody_else_leaves_who_is_signed_in(
    instance: TestInstance, page: Page
) -> None:
    with http(instance) as web:
        assert web.post("/api/v1/users", json={"name": "eve"}).is_success
        token = web.post("/api/v1/tokens", json={"user": "eve"}).json()["token"]
        shown = {"Authorization": f"Bearer {token}"}
        link = web.post("/api/v1/sign-in/links", headers=shown).json()["url"]
    page.goto("about:blank")
    page.goto(link)
    expect(page.get_by_role("alert")).to_contain_text("This link is of eve")
    expect(page.get_by_text("owner · administrator")).to_be_visible()


def test_a_page_whose_server_is_gone_says_so_and_catches_up(browser: Browser) -> None:
    port = str(free_port())
    with make_instance(GPUYARD_SERVER__PORT=port) as own:
        own.ok("up")
        with signed_in(own, browser, "/jobs") as page:
            expect(page.get_by_text("Nothing was submitted yet.")).to_be_visible()
            own.kill("server")
            notice = page.get_by_text("The server does not answer.")
            expect(notice.first).to_be_visible()
            # A screen that was not loaded yet takes the page not along.
            page.get_by_role("link", name="Costs").click()
            expect(page.get_by_text("This screen cannot be shown now.")).to_be_visible()
            page.get_by_role("link", name="Jobs").click()
            own.ok("up")
            job = submit(own, "true", name="meanwhile")
            line = page.get_by_role("listitem").filter(has_text="meanwhile")
            expect(line).to_contain_text("completed")
            expect(notice).to_have_count(0)
            assert own.wait(job).state == "completed"


def test_a_viewer_sees_no_button_that_is_not_theirs(
    instance: TestInstance, guest: Page
) -> None:
    job = submit(instance, "true", name="of the owner")
    instance.ok("user", "add", "vera", "--role", "viewer")
    token = instance.json("token", "new", "--user", "vera", "--name", "page")
    page = guest
    page.goto(f"{instance.address().url}/jobs/{job}")
    page.get_by_label("Token").fill(token["token"])
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("heading", name="of the owner")).to_be_visible()
    expect(page.get_by_role("button", name="Run again")).to_have_count(0)
    instance.ok("token", "revoke", token["id"])
    # The dialog may be there already, and in the way of a click.
    page.get_by_role("link", name="Jobs").dispatch_event("click")
    # Who has no valid token any more has no session, either.
    expect(page.get_by_role("dialog", name="You were signed out")).to_be_visible()


def test_who_signs_in_again_in_one_tab_goes_on_in_all(
    instance: TestInstance, page: Page
) -> None:
    page.get_by_role("link", name="Submit", exact=True).click()
    page.get_by_label("Name").fill("half typed")
    other = page.context.new_page()
    other.goto(f"{instance.address().url}/nowhere")
    expect(other.get_by_text("Nothing is at this address.")).to_be_visible()
    other.get_by_role("link", name="Go to the overview").click()
    expect(other.get_by_role("heading", name="Overview")).to_be_visible()
    page.context.clear_cookies()
    page.get_by_label(re.compile("Command")).fill("echo")
    # No real clicks: the dialog may stand before them already.
    page.get_by_role("button", name="Submit").dispatch_event("click")
    other.get_by_role("link", name="Jobs", exact=True).dispatch_event("click")
    dialogs = [
        tab.get_by_role("dialog", name="You were signed out") for tab in (page, other)
    ]
    for dialog in dialogs:
        expect(dialog).to_be_visible()
    dialogs[1].get_by_label("Token").fill(instance.address().token)
    dialogs[1].get_by_role("button", name="Sign in").click()
    for dialog in dialogs:
        expect(dialog).to_be_hidden()
    expect(page.get_by_label("Name")).to_have_value("half typed")


def test_a_session_is_used_by_our_own_page_only(instance: TestInstance) -> None:
    address = instance.address()
    own = {"Origin": address.url}
    with httpx.Client(base_url=address.url, timeout=30) as web:
        form = {"token": address.token}
        foreign = web.post("/auth/token", data=form, headers={"Origin": "http://evil"})
        assert foreign.status_code == 403
        assert web.post("/auth/token", data=form).status_code == 403
        answer = web.post("/auth/token", data=form, headers=own)
        assert answer.status_code == 204
        cookie = answer.headers["set-cookie"]
        assert "HttpOnly" in cookie and "SameSite=Lax" in cookie
        assert web.get("/api/v1/whoami").json()["role"] == "administrator"
        spec = {"command": ["true"]}
        assert web.post("/api/v1/jobs", json=spec).status_code == 403
        for method in ("POST", "PUT", "PATCH", "DELETE"):
            for headers in ({}, {"Origin": "null"}, {"Origin": f"{address.url}.evil"}):
                answer = web.request(method, "/api/v1/budgets/all", headers=headers)
                assert answer.status_code == 403, (method, headers, answer.text)
        web.post("/auth/logout", headers=own)
        # A copy of the cookie is worth nothing after the sign-out.
        kept = {"Cookie": cookie.partition(";")[0]}
        assert web.get("/api/v1/whoami", headers=kept).status_code == 401
        # Who signs out once more is led to the page, and loses the cookie.
        again = web.post("/auth/logout", headers={**own, **kept})
        assert again.is_redirect
        assert "Max-Age=0" in again.headers["set-cookie"]


def test_the_page_loads_little_and_nothing_from_elsewhere(
    instance: TestInstance,
) -> None:
    with http(instance, headers={"Accept-Encoding": "gzip"}) as web:
        index = web.get("/")
        policy = index.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert index.headers["x-content-type-options"] == "nosniff"
        assert index.headers["referrer-policy"] == "same-origin"
        assert not re.search(r"https?://", index.text)
        assets = re.findall(r'(?:src|href)="(/assets/[^"]+)"', index.text)
        answers = [index, *(web.get(asset) for asset in assets)]
        sizes = [int(answer.headers["content-length"]) for answer in answers]
        assert len(assets) >= 2
        assert sum(sizes) < 60_000, "the first screen's own code"
        for answer in answers[1:]:
            assert "immutable" in answer.headers["cache-control"]
        assert web.get("/assets/../../auth.py").status_code == 404
        assert web.get("/assets/none.js").status_code == 404
        assert web.get("/jobs/some-job").text == index.text


def test_screens_serve_keyboards_and_screen_readers(
    instance: TestInstance, page: Page
) -> None:
    job = submit(instance, "true", name="seen by all")
    for path in [*SCREENS, f"/jobs/{job}", f"/jobs/{job}?show=log"]:
        page.goto(f"{instance.address().url}{path}")
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        check_for_all(page)
    # A new screen has the keyboard, and not the link that led there.
    page.get_by_role("link", name="Jobs").press("Enter")
    expect(page.get_by_role("main")).to_be_focused()
    page.keyboard.press("Shift+Tab")
    expect(page.get_by_role("button", name="Sign out")).to_be_focused()


def test_no_screen_is_too_wide_for_a_phone(instance: TestInstance, page: Page) -> None:
    job = submit(instance, "true", name="a-name-that-is-long-" * 5)
    instance.wait(job)
    page.set_viewport_size({"width": 390, "height": 844})
    shown = {
        "/": ".card.gpu",
        "/jobs": ".list .item, .list .line",
        "/submit": "td[data-title='An hour']",
        "/machines": ".card",
        "/costs": "td[data-title='Cost']",
        "/audit": ".list .line",
        f"/jobs/{job}": ".badge",
        f"/jobs/{job}?show=timeline": "td",
    }
    for path, element in shown.items():
        page.goto(f"{instance.address().url}{path}")
        expect(page.locator(element).first).to_be_visible()
        assert page.evaluate(TOO_WIDE) == [], path
