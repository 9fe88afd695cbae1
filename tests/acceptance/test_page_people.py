"""People on the page: accounts, tokens, projects, shares, secrets and budgets."""

import re
from collections.abc import Iterator

import httpx
import pytest
from playwright.sync_api import Browser, expect

from tests.support.browser import shared_browser as browser
from tests.support.instance import TestInstance, make_instance
from tests.support.page_checks import check_for_all, signed_in

__all__ = ["browser"]

# No browser may take a name for anything but text.
EVIL = "<img src=x onerror=alert(1)> \N{HEBREW LETTER ALEF}"


FAIR = """
[scheduler]
policy = "fair"

[fair_share.organisations.physics]
shares = 1

[fair_share.projects.vision]
organisation = "physics"
shares = 3
"""


# Buttons with which nobody changes anything of the server's.
HARMLESS = {"Choose", "Choose files", "Clear", "Copy"}
HARMLESS |= {"Month before", "Today", "Month after"}


@pytest.fixture(scope="module")
def instance() -> Iterator[TestInstance]:
    with make_instance() as made:
        made.home.create()
        made.home.settings.write_text(FAIR)
        made.ok("up", "--simulate-gpus", "2x24")
        yield made


def test_a_service_account_has_tokens_that_are_replaced_and_revoked(
    instance: TestInstance, browser: Browser
) -> None:
    instance.ok("project", "add", "robots")
    with signed_in(instance, browser, "/people?show=service+accounts") as page:
        opener = page.get_by_role("button", name="Add a service account")
        opener.click()
        expect(page.get_by_role("dialog")).to_be_visible()
        page.keyboard.press("Escape")
        expect(opener).to_be_focused()
        opener.click()
        form = page.get_by_role("dialog")
        check_for_all(page)
        form.get_by_label(re.compile("Name")).fill("nightly")
        form.get_by_label(re.compile("Name")).press("Enter")
        # The browser goes to what is required and missing, and says so.
        project = form.get_by_label(re.compile("^Project"))
        expect(project).to_be_focused()
        project.select_option("robots")
        form.get_by_label(re.compile("Name")).press("Enter")
        shown = page.get_by_role("dialog", name="The token first of nightly")
        token = shown.get_by_label("Token").inner_text()
        shown.get_by_role("button", name="Close").click()
        accounts = page.get_by_role("region", name="Service accounts")
        expect(accounts.get_by_role("row", name=re.compile("nightly"))).to_contain_text(
            "member"
        )
        check_for_all(page)
        tokens = page.get_by_role("region", name="Tokens")
        tokens.get_by_role("button", name="Revoke").click()
        page.get_by_role("dialog").get_by_role("button", name="Revoke").click()
        expect(page.get_by_role("heading", name="Their tokens")).to_have_count(0)
        refused = httpx.get(
            f"{instance.address().url}/api/v1/whoami",
            headers={"Authorization": f"Bearer {token}"},
            timeout=60,
        )
        assert refused.status_code == 401
        page.get_by_role("tab", name="reservations").click()
        page.get_by_role("tab", name="reservations").press("ArrowLeft")
        expect(page.get_by_role("tab", name="sign-ins")).to_be_focused()
        lines = page.get_by_role("region", name="Sign-ins and changes")
        expect(lines.get_by_text("POST /api/v1/users")).to_be_visible()
        page.get_by_label("Event").select_option("refused")
        expect(lines.get_by_text("GET /api/v1/whoami").first).to_be_visible()
        expect(lines.get_by_text("POST /api/v1/users")).to_have_count(0)
        check_for_all(page)


def test_shares_stand_beside_what_was_used(
    instance: TestInstance, browser: Browser
) -> None:
    instance.wait(instance.submit(["true"], project="vision"))
    with signed_in(instance, browser, "/people?show=shares") as page:
        shares = page.get_by_role("region", name="Fair shares")
        organisation = shares.get_by_role(
            "row", name=re.compile("organisation physics")
        )
        expect(organisation.get_by_role("progressbar")).to_have_count(2)
        used = organisation.get_by_label("Used by physics")
        expect(used).to_have_attribute("aria-valuenow", re.compile("[0-9]+"))
        expect(shares.get_by_text("owner in vision")).to_be_visible()
        check_for_all(page)


def test_secrets_and_budgets_are_set_and_what_ran_is_measured(
    instance: TestInstance, browser: Browser
) -> None:
    job = instance.submit(["sleep", "1.2"], name="measured")
    with signed_in(instance, browser, "/people?show=secrets") as page:
        page.get_by_role("button", name="Set a secret").click()
        page.get_by_label(re.compile("^Name")).fill("HF_TOKEN")
        page.get_by_label("Value").fill("hidden-value")
        page.get_by_label("Value").press("Enter")
        secret = page.get_by_role("row", name=re.compile("HF_TOKEN"))
        expect(secret).to_contain_text("shared")
        expect(page.get_by_text("hidden-value")).to_have_count(0)
        check_for_all(page)
        secret.get_by_role("button", name="Remove").click()
        page.get_by_role("button", name="Remove it").click()
        expect(secret).to_have_count(0)
        page.get_by_role("link", name="Costs", exact=True).click()
        page.get_by_role("button", name="Set a budget").click()
        page.get_by_label("Name", exact=True).fill("lab")
        page.get_by_label("Amount").fill("0")
        page.get_by_label("Amount").press("Enter")
        expect(page.get_by_role("alert")).to_contain_text("amount")
        page.get_by_label("Amount").fill("25")
        page.get_by_label("Amount").press("Enter")
        expect(page.get_by_text("of $25.00")).to_be_visible()
        check_for_all(page)
        page.get_by_role("button", name="Change lab").click()
        page.get_by_label("Amount").fill("50")
        page.get_by_label("Amount").press("Enter")
        expect(page.get_by_text("of $50.00")).to_be_visible()
        page.get_by_role("button", name="Remove lab").click()
        page.get_by_role("button", name="Remove it").click()
        expect(page.get_by_text("of $50.00")).to_have_count(0)
        instance.wait(job)
        page.get_by_role("tab", name="Benchmarks").click()
        programs = page.get_by_role("region", name="Programs")
        expect(programs.get_by_role("row", name="measured")).to_contain_text("no GPU")
        check_for_all(page)


def test_a_token_is_shown_once_and_is_good_until_it_is_revoked(
    instance: TestInstance, browser: Browser
) -> None:
    with signed_in(instance, browser, "/people") as page:
        page.get_by_role("button", name="Add a user").click()
        form = page.get_by_role("dialog")
        form.get_by_label(re.compile("Name")).fill("ana")
        form.get_by_role("button", name="Add").click()
        shown = page.get_by_role("dialog", name="The token first of ana")
        token = shown.get_by_label("Token").inner_text()
        shown.get_by_role("button", name="Close").click()
        check_for_all(page)
        page.get_by_label("Role of ana").select_option("viewer")
        page.get_by_role("tab", name="tokens").click()
        with signed_in(instance, browser, "/people?show=tokens", token) as own:
            expect(own.get_by_text("ana · viewer")).to_be_visible()
            own.get_by_role("button", name="Make a token").click()
            own.get_by_label(re.compile("Name")).fill("laptop")
            own.get_by_role("button", name="Make", exact=True).click()
            expect(own.get_by_label("Token", exact=True)).to_contain_text("gpuyard_")
        line = page.get_by_role("row", name=re.compile("^first"))
        line.get_by_role("button", name="Revoke").click()
        page.get_by_role("dialog").get_by_role("button", name="Revoke").click()
        expect(line).to_have_count(0)
        expect(page.get_by_role("row", name=re.compile("^laptop"))).to_be_visible()
        check_for_all(page)


def test_projects_have_members_and_reservations_stand_in_the_calendar(
    instance: TestInstance, browser: Browser
) -> None:
    instance.ok("user", "add", "ben")
    with signed_in(instance, browser, "/people?show=projects") as page:
        page.get_by_role("button", name="Register a project").click()
        page.get_by_label("Name").fill(EVIL.replace("/", ""))
        page.get_by_role("button", name="Register", exact=True).click()
        project = page.get_by_role("article", name=EVIL)
        project.get_by_role("button", name="Add a member").click()
        page.get_by_label(re.compile("^User")).select_option("ben")
        page.get_by_role("button", name="Add", exact=True).click()
        expect(project.get_by_role("row", name=re.compile("ben"))).to_be_visible()
        check_for_all(page)
        page.get_by_role("tab", name="reservations").click()
        page.get_by_role("button", name="Reserve GPUs").click()
        form = page.get_by_role("dialog")
        form.get_by_label(re.compile("^For")).select_option("user ben")
        form.get_by_label("To", exact=True).fill("2099-01-01T09:00")
        form.get_by_role("button", name="Reserve").click()
        calendar = page.get_by_role("region", name="Calendar")
        calendar.get_by_role("button", name="ben: 1 GPU").first.click()
        check_for_all(page)
        page.get_by_role("button", name="Remove it").click()
        expect(calendar.get_by_role("button")).to_have_count(0)


def test_who_may_not_sees_no_button(instance: TestInstance, browser: Browser) -> None:
    instance.ok("user", "add", "vera", "--role", "viewer")
    instance.ok("trust", "quarantine", "node:of-others", "--for", "1h")
    token = instance.json("token", "new", "--user", "vera", "--name", "page")["token"]
    with signed_in(instance, browser, "/people", token) as page:
        expect(page.get_by_role("row", name=re.compile("^vera"))).to_be_visible()
        expect(page.get_by_role("button", name="Add a user")).to_have_count(0)
        expect(page.get_by_label("Role of vera")).to_have_count(0)
        page.get_by_role("link", name="Verification").click()
        expect(page.get_by_text("node:of-others")).to_be_visible()
        # Everybody may look at what a check has judged.
        changing = re.compile("quarantine|forget|end it", re.IGNORECASE)
        buttons = page.get_by_role("main").get_by_role("button", name=changing)
        expect(buttons).to_have_count(0)
        page.get_by_role("link", name="Submit", exact=True).click()
        page.get_by_text("Project, labels, notices", exact=True).click()
        expect(page.get_by_label(re.compile("^Whom to tell"))).to_be_visible()
        expect(page.get_by_role("button", name="Give it a secret")).to_have_count(0)
        for path, shown in {
            "/": "Newest jobs",
            "/submit": "Viewers submit nothing",
            "/schedules": "There is no schedule",
            "/sweeps": "Flows",
            "/batches": "Batches",
            "/data": "Datasets",
            "/models": "Models",
            "/machines": "online",
            "/offers": "healthy",
            "/clouds": "Nothing is rented",
            "/costs?show=bills": "Export",
            "/people?show=projects": "Projects",
            "/people?show=service+accounts": "Service accounts",
            "/people?show=secrets": "Secrets",
            "/people?show=reservations": "Today",
            "/people?show=shares": "vision",
        }.items():
            page.goto(f"{instance.address().url}{path}")
            main = page.get_by_role("main")
            expect(main.get_by_text(shown).first).to_be_visible()
            names = set(main.locator("button:not([role=tab])").all_inner_texts())
            assert names <= HARMLESS, f"{path}: {names - HARMLESS}"
