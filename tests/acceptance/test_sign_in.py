"""Sign-in through an OpenID provider: in a real browser, by the command, and by those
who should not get in.
"""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from playwright.sync_api import Browser

from tests.support.browser import browser
from tests.support.instance import TestInstance, make_instance
from tests.support.openid import Provider, Visitor, openid_provider

__all__ = ["browser"]
# The provider signs with a library that has words for its own authors.
pytestmark = pytest.mark.filterwarnings("ignore:.*:DeprecationWarning:authlib.*")
SECRET = "the-secret-of-the-client"


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    with openid_provider() as made:
        yield made


@pytest.fixture(scope="module")
def instance(provider: Provider) -> Iterator[TestInstance]:
    openid = provider.settings(
        client_secret="OPENID_CLIENT_SECRET",
        roles={"gpu-admins": "administrator", "gpu-users": "member"},
    )
    settings = {
        "GPUYARD_SIGN_IN__OPENID": json.dumps(openid),
        "OPENID_CLIENT_SECRET": SECRET,
        "GPUYARD_NOTIFY__EMAIL": json.dumps(
            {"host": "127.0.0.1", "tls": "none", "from": "gpuyard@example.org"}
        ),
    }
    with make_instance(**settings) as made:
        made.ok("up")
        yield made


def know(provider: Provider, name: str, *groups: str) -> str:
    """A person whom the provider knows; its subject."""
    subject = f"subject-of-{name}"
    provider.know(subject, preferred_username=name, groups=list(groups))
    return subject


def users(instance: TestInstance) -> dict[str, Any]:
    return {user["name"]: user for user in instance.json("user", "list")["items"]}


def test_a_person_signs_in_with_a_browser(
    instance: TestInstance, provider: Provider, browser: Browser
) -> None:
    subject = know(provider, "ana", "gpu-users")
    url = instance.address().url
    page = browser.new_page()
    page.goto(f"{url}/auth")
    page.get_by_text("Sign in").click()
    page.locator("input[name=sub]").fill(subject)
    page.get_by_role("button", name="Authorize").click()
    page.wait_for_url(f"{url}/auth")
    assert "You are ana, a member." in page.inner_text("body")
    # The session is no script's to read, and a form of the page signs out.
    assert page.evaluate("document.cookie") == ""
    page.get_by_text("Sign out").click()
    page.wait_for_url(f"{url}/auth")
    assert "You are not signed in" in page.inner_text("body")
    sessions = [
        t for t in instance.json("token", "list")["items"] if t["user"] == "ana"
    ]
    assert sessions == []


def test_a_command_signs_in_through_a_browser(
    instance: TestInstance, provider: Provider, browser: Browser, tmp_path: Path
) -> None:
    subject = know(provider, "ben", "gpu-users")
    url = instance.address().url
    instance.environment["GPUYARD_HOME"] = str(tmp_path / "home")
    try:
        login = instance.popen("login", url, "--browser")
    finally:
        instance.environment["GPUYARD_HOME"] = str(instance.home.root)
    assert login.stderr
    said = login.stderr.readline()
    found = re.search(r"Open (\S+) in a browser.* the code (\S+)\.$", said)
    assert found, said
    address, code = found.groups()
    page = browser.new_page()
    # Who is not signed in signs in first, and comes back to the code.
    page.goto(address)
    page.locator("input[name=sub]").fill(subject)
    page.get_by_role("button", name="Authorize").click()
    page.wait_for_url(address)
    asked = page.inner_text("body")
    assert code in asked
    assert "wants to act as ben, a member" in asked
    page.get_by_role("button", name="Sign it in").click()
    page.wait_for_url(f"{url}/auth/device/confirm")
    assert "is signed in" in page.inner_text("body")
    assert login.wait(timeout=30) == 0
    there = {"GPUYARD_HOME": str(tmp_path / "home")}
    me = json.loads(instance.ok("whoami", "--json", env=there))
    assert (me["user"], me["role"], me["token"]["kind"]) == ("ben", "member", "command")
    assert "signed out" in instance.ok("logout", env=there)
    theirs = [t for t in instance.json("token", "list")["items"] if t["user"] == "ben"]
    assert [t["kind"] for t in theirs] == ["session"]
    visitor = Visitor(instance)
    visitor.sign_in(subject)
    # A code is good once.
    again = visitor.post("/auth/device/confirm", user_code=code, answer="yes")
    assert again.status_code == 404
    instance.ok("user", "disable", "ben")
    assert "ben is disabled" in visitor.web.get("/auth").text


def test_a_refused_command_has_no_token(
    instance: TestInstance, provider: Provider
) -> None:
    visitor = Visitor(instance)
    visitor.sign_in(know(provider, "cleo", "gpu-users"))
    asked = httpx.post(
        f"{visitor.url}/auth/device", data={"host": "<b>evil</b>"}, timeout=60
    ).json()
    code = asked["user_code"]
    # Neither the name of the machine nor the code brings words onto the page.
    typed = f'{code} ЭТО OUI 0"><i>'
    page = visitor.web.get("/auth/device", params={"user_code": typed}).text
    assert code in page
    assert not re.search("evil|ЭТО|OUI|<i>", page)
    from_elsewhere = visitor.web.post(
        "/auth/device/confirm",
        data={"user_code": code, "answer": "yes"},
        headers={"Origin": "http://127.0.0.1:1"},
    )
    assert from_elsewhere.status_code == 403
    visitor.post("/auth/device/confirm", user_code=code, answer="no")
    poll = {"device_code": asked["device_code"]}
    token_url = f"{visitor.url}/auth/device/token"
    refused = httpx.post(token_url, data=poll, timeout=60)
    assert refused.json() == {"error": "access_denied"}
    assert httpx.post(token_url, data=poll, timeout=60).json() == {
        "error": "expired_token"
    }
    assert httpx.post(token_url, data={}, timeout=60).json() == {
        "error": "expired_token"
    }


def test_a_command_is_not_signed_in_as_who_is_somebody_else_now(
    instance: TestInstance, provider: Provider
) -> None:
    visitor = Visitor(instance)
    visitor.sign_in(know(provider, "ida", "gpu-users"))
    asked = httpx.post(
        f"{visitor.url}/auth/device", data={"host": "lab-1"}, timeout=60
    ).json()
    code = asked["user_code"]
    assert visitor.post("/auth/device/confirm", user_code=code, answer="yes").is_success
    instance.ok("user", "update", "ida", "--sign-in")
    poll = {"device_code": asked["device_code"]}
    refused = httpx.post(f"{visitor.url}/auth/device/token", data=poll, timeout=60)
    assert refused.json() == {"error": "access_denied"}


def test_a_changed_name_makes_nobody_somebody_else(
    instance: TestInstance, provider: Provider
) -> None:
    instance.ok("user", "add", "dora", "--role", "administrator")
    assert users(instance)["dora"]["awaits_sign_in"] is False
    thief = know(provider, "mallory", "gpu-users")
    visitor = Visitor(instance)
    provider.know(thief, preferred_username="dora", groups=["gpu-users"])
    refused = visitor.sign_in(thief)
    assert refused.status_code == 403
    assert "There is a user dora already" in refused.text
    instance.ok("user", "update", "dora", "--sign-in")
    dora = know(provider, "dora")
    assert Visitor(instance).sign_in(dora).status_code == 303
    assert Visitor(instance).sign_in(thief).status_code == 403
    # Whoever signed in before stays the same user, whatever it is called now.
    provider.know(dora, preferred_username="dorothea")
    again = Visitor(instance)
    again.sign_in(dora)
    assert again.signed_in_as() == "dora"
    assert "dorothea" not in users(instance)
    assert users(instance)["dora"]["role"] == "administrator"
    instance.ok("user", "update", "dora", "--no-sign-in")
    assert again.signed_in_as() is None
    assert Visitor(instance).sign_in(dora).status_code == 403


def test_groups_give_and_take_roles(instance: TestInstance, provider: Provider) -> None:
    subject = know(provider, "emil", "gpu-users", "gpu-admins")
    visitor = Visitor(instance)
    visitor.sign_in(subject)
    assert visitor.web.get("/api/v1/whoami").json()["role"] == "administrator"
    know(provider, "emil", "gpu-users")
    Visitor(instance).sign_in(subject)
    assert visitor.web.get("/api/v1/whoami").json()["role"] == "member"
    know(provider, "emil", "others")
    assert Visitor(instance).sign_in(subject).status_code == 403
    assert visitor.web.get("/api/v1/whoami").status_code == 401
    assert users(instance)["emil"]["role"] == "viewer"
    stranger = know(provider, "stranger", "others")
    refused = Visitor(instance).sign_in(stranger)
    assert "Nobody has added the user stranger" in refused.text
    odd = know(provider, "Robert'); DROP", "gpu-users")
    assert "no user can have" in Visitor(instance).sign_in(odd).text


def test_the_jobs_of_a_user_send_e_mails_to_its_own_address_only(
    instance: TestInstance, provider: Provider
) -> None:
    mailbox = {"email": "fritz@example.org", "email_verified": True}
    provider.know(
        "subject-of-fritz", preferred_username="fritz", groups=["gpu-users"], **mailbox
    )
    visitor = Visitor(instance)
    visitor.sign_in("subject-of-fritz")
    assert users(instance)["fritz"]["email"] == "fritz@example.org"
    seen = visitor.web.get("/api/v1/users").json()["items"]
    assert {user["email"] for user in seen} == {None}
    answers = [
        visitor.web.post(
            "/api/v1/jobs",
            json={"command": ["true"], "held": True, "notify": [f"mail:{address}"]},
            headers={"Origin": visitor.url},
        )
        for address in ("fritz@example.org", "stranger@example.org")
    ]
    assert [answer.status_code for answer in answers] == [201, 422]
    assert "give your own, fritz@example.org" in answers[1].text


def test_a_session_is_for_pages_of_this_server(
    instance: TestInstance, provider: Provider
) -> None:
    visitor = Visitor(instance)
    visitor.sign_in(know(provider, "finn", "gpu-admins"))
    web = visitor.web
    assert web.get("/api/v1/jobs").status_code == 200
    for origin in ({}, {"Origin": "null"}, {"Origin": "http://evil.example"}):
        refused = web.post("/api/v1/users", json={"name": "gus"}, headers=origin)
        assert refused.status_code == 403, origin
        assert web.post("/auth/logout", headers=origin).status_code == 403
    handshake = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "MDEyMzQ1Njc4OTAxMjM0NQ==",
        "Origin": "http://evil.example",
    }
    assert web.get("/api/v1/jobs/x/exec", headers=handshake).status_code == 403
    own = {"Origin": visitor.url}
    assert web.post("/api/v1/users", json={"name": "gus"}, headers=own).is_success
    # A cookie is no token, and a token no cookie.
    name = visitor.cookies.session
    session = web.cookies[name]
    url = f"{visitor.url}/api/v1/jobs"
    as_token = httpx.get(
        url, headers={"Authorization": f"Bearer {session}"}, timeout=60
    )
    assert as_token.status_code == 401
    token = instance.json("token", "new", "--user", "gus")["token"]
    as_cookie = httpx.get(url, headers={"Cookie": f"{name}={token}"}, timeout=60)
    assert as_cookie.status_code == 401
    # A new sign-in is a new session, and ends the former one.
    visitor.sign_in("subject-of-finn")
    assert web.cookies[name] != session
    former = httpx.get(url, headers={"Cookie": f"{name}={session}"}, timeout=60)
    assert former.status_code == 401
    grep = ["grep", "-rlE", f"{session}|{web.cookies[name]}|{SECRET}"]
    kept = subprocess.run(
        [*grep, str(instance.home.root)], capture_output=True, check=False
    )
    assert kept.stdout == b""


def test_an_answer_of_the_provider_counts_once_and_in_one_browser(
    instance: TestInstance, provider: Provider
) -> None:
    subject = know(provider, "hana", "gpu-users")
    attacker = Visitor(instance)
    answer = attacker.at_provider(attacker.begin(), subject)
    victim = Visitor(instance)
    assert victim.web.get(answer).status_code == 401
    victim.begin()
    assert victim.web.get(answer).status_code == 401
    cookie = {
        "Cookie": f"{attacker.cookies.begun}={attacker.web.cookies[attacker.cookies.begun]}"
    }
    assert attacker.web.get(answer).status_code == 303
    replayed = httpx.get(answer, headers=cookie, timeout=60)
    assert replayed.status_code == 401
    assert "used before" in replayed.text
    denied = victim.web.get("/auth/callback?error=access_denied&state=x")
    assert "not admitted there" in denied.text
    odd = victim.web.get("/auth/callback?error=%3Cscript%3E&state=x")
    assert "<script>" not in odd.text


@pytest.mark.parametrize(
    "path",
    [
        "//evil.example",
        "https://evil.example",
        "/\\evil.example",
        "\\\\evil.example",
        "javascript:alert(1)",
        "/a\r\nSet-Cookie: x=y",
        "/a b",
        "/" + "a" * 600,
        "auth",
    ],
)
def test_a_sign_in_leads_to_no_other_place(instance: TestInstance, path: str) -> None:
    refused = httpx.get(
        f"{instance.address().url}/auth/login", params={"next": path}, timeout=60
    )
    assert refused.status_code == 422
    assert "next: is no path of this server" in refused.text


def test_the_provider_is_told_what_protects_the_answer(instance: TestInstance) -> None:
    visitor = Visitor(instance)
    asked = parse_qs(urlsplit(visitor.begin("/auth/device")).query)
    other = parse_qs(urlsplit(visitor.begin()).query)
    assert asked["code_challenge_method"] == ["S256"]
    for name in ("state", "nonce", "code_challenge"):
        assert asked[name] != other[name]
        assert len(asked[name][0]) >= 43
    assert SECRET not in json.dumps(asked)


def test_without_a_provider_nobody_signs_in_with_a_browser(tmp_path: Path) -> None:
    with make_instance() as instance:
        instance.ok("up")
        url = instance.address().url
        there = {"GPUYARD_HOME": str(tmp_path / "home")}
        refused = instance.run("login", url, "--browser", env=there)
        assert refused.returncode == 4
        assert f"Nobody signs in to {url} with a browser" in refused.stderr
        assert httpx.get(f"{url}/auth/login", timeout=60).status_code == 404
        assert httpx.post(f"{url}/auth/device", timeout=60).status_code == 404
