"""Which addresses the jobs of whom may name."""

from types import SimpleNamespace
from typing import cast

import pytest

from gpuyard.config.notify import NotifySettings
from gpuyard.controller.intake import Template
from gpuyard.controller.new_notices import refuse_addresses
from gpuyard.domain.errors import InvalidInputError

SETTINGS = NotifySettings.model_validate(
    {
        "email": {"host": "smtp.example.org", "from": "gpuyard@example.org"},
        "mail_to": ["Lab.example", "ops@example.org"],
        "internal_hosts": ["ci.lab"],
    }
)
MAILBOXES = {"ana": "Ana@example.org"}


def check(user: str | None, address: str) -> None:
    rest = b'{"notify":["%s"]}' % address.encode()
    template = cast("Template", SimpleNamespace(rest=rest, user=user))
    refuse_addresses(template, SETTINGS, MAILBOXES.get)


@pytest.mark.parametrize(
    ("user", "address"),
    [
        (None, "mail:stranger@example.com"),
        ("ana", "mail:ana@example.org"),
        ("ben", "mail:OPS@example.org"),
        ("ben", "mail:anybody@lab.example"),
        ("ben", "https://ci.lab/hook"),
        (None, "http://127.0.0.1/hook"),
    ],
)
def test_ones_own_and_what_the_settings_name(user: str | None, address: str) -> None:
    check(user, address)


@pytest.mark.parametrize(
    ("user", "address", "remedy"),
    [
        ("ana", "mail:ben@example.org", "give your own, Ana@example.org, or ask an"),
        ("ben", "mail:ana@example.org", r"to add it to \[notify\] mail_to"),
        ("ben", "mail:x@deep.lab.example", "mail_to"),
        ("ben", "mail:lab.example@example.com", "mail_to"),
        ("ben", "http://127.0.0.1/hook", "internal_hosts"),
    ],
)
def test_strangers_and_hosts_inside_are_refused(
    user: str, address: str, remedy: str
) -> None:
    with pytest.raises(InvalidInputError, match=remedy) as refused:
        check(user, address)
    assert refused.value.faults[0].field == "notify"


@pytest.mark.parametrize("given", ["", "@", "ana@", "lab example", "*.example.org"])
def test_what_may_get_mail_is_an_address_or_a_domain(given: str) -> None:
    with pytest.raises(ValueError, match="neither an address nor a domain"):
        NotifySettings(mail_to=(given,))
