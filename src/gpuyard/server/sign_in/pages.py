"""The pages on which people sign in: plain, without scripts, and with nothing from
another address.
"""

import base64
import hashlib
from html import escape

from fastapi.responses import HTMLResponse

from gpuyard.controller.users import Identity
from gpuyard.domain.errors import GpuyardError
from gpuyard.server.sign_in.devices import Grant

_STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 34rem; margin: 10vh auto;
  padding: 1rem; }
code { font: 15px/1.5 ui-monospace, monospace; }
.code { font-size: 1.6rem; letter-spacing: .15em; }
button { font: inherit; padding: .4rem 1rem; margin-right: .5rem; }
input { font: inherit; padding: .4rem; width: 12rem; }
"""
_STYLE_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
_HEADERS = {
    "Content-Security-Policy": (
        f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; frame-ancestors 'none';"
        " base-uri 'none'; form-action 'self'"
    ),
    # With no-referrer, browsers would not say of which page a form is.
    "Referrer-Policy": "same-origin",
}


def _page(title: str, content: str, status: int = 200) -> HTMLResponse:
    return HTMLResponse(
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)} · gpuyard</title><style>{_STYLE}</style></head>"
        f"<body><h1>{escape(title)}</h1>{content}</body></html>",
        status,
        _HEADERS,
    )


def error_page(error: GpuyardError) -> HTMLResponse:
    """Why something does not work, for people."""
    content = f"<p>{escape(str(error))}</p>"
    content += '<p><a href="/auth">Back</a></p>'
    answer = _page("That did not work", content, error.status)
    if error.retry_after:
        answer.headers["Retry-After"] = str(error.retry_after)
    return answer


def signed_out_page() -> HTMLResponse:
    """Nobody is signed in."""
    return _page("You are not signed in", '<p><a href="/auth/login">Sign in</a></p>')


def home_page(identity: Identity) -> HTMLResponse:
    """Who is signed in."""
    who = escape(identity.user or "the owner of the instance")
    return _page(
        "You are signed in",
        f"<p>You are <b>{who}</b>, a {escape(identity.role)}.</p>"
        '<form method="post" action="/auth/logout"><button>Sign out</button></form>',
    )


def code_page() -> HTMLResponse:
    """Asks for the code of a command."""
    return _page(
        "Sign a command in",
        "<p>Type the code that <code>gpuyard login</code> shows.</p>"
        '<form method="get" action="/auth/device"><input name="user_code"'
        ' autocomplete="off" autofocus required maxlength="20">'
        " <button>Go on</button></form>",
    )


def confirm_page(identity: Identity, user_code: str, grant: Grant) -> HTMLResponse:
    """Asks whether it is this person's command."""
    host = escape(grant.host) or "nothing in particular"
    where = f" ({escape(grant.address)})" if grant.address else ""
    who = escape(identity.user or "")
    code = escape(user_code, quote=True)
    return _page(
        "Sign a command in",
        f'<p class="code">{code}</p><p>A command on a machine that calls itself'
        f" <b>{host}</b>{where} wants to act as <b>{who}</b>, a"
        f" {escape(identity.role)}.</p><p>Go on only if you have just typed"
        " <code>gpuyard login</code> there, and it shows this code. Nobody else has a"
        ' reason to send you here.</p><form method="post"'
        ' action="/auth/device/confirm"><input type="hidden" name="user_code"'
        f' value="{code}"><button name="answer" value="yes">Sign it in</button>'
        '<button name="answer" value="no">It is not mine</button></form>',
    )


def decided_page(grant: Grant) -> HTMLResponse:
    """What has become of the command."""
    if grant.denied:
        return _page("Refused", "<p>The command is not signed in.</p>")
    return _page(
        "Signed in",
        f"<p>The command on <b>{escape(grant.host or 'its machine')}</b> is signed in."
        " You can close this page.</p>",
    )
