"""Addresses of who is told when a job ends."""

import pytest

from gpuyard.domain.end_notices import NoticeAddress, NoticeForm, without_addresses
from gpuyard.domain.errors import InvalidInputError
from gpuyard.domain.validation import parse_spec

SECRET = "https://hooks.slack.com/services/T0/B0/hunter2"


@pytest.mark.parametrize(
    ("text", "form", "host"),
    [
        (SECRET, NoticeForm.WEBHOOK, "hooks.slack.com"),
        (f"slack:{SECRET}", NoticeForm.SLACK, "hooks.slack.com"),
        ("http://user:pass@127.0.0.1:8080/x", NoticeForm.WEBHOOK, "127.0.0.1"),
        ("mail:ana@example.org", NoticeForm.MAIL, "example.org"),
        ("mailto:ana@example.org", NoticeForm.MAIL, "example.org"),
    ],
)
def test_an_address_has_a_form_and_shows_only_its_host(
    text: str, form: NoticeForm, host: str
) -> None:
    address = NoticeAddress.parse(text)
    assert (address.form, address.host) == (form, host)
    assert address.shown == f"{form} at {host}"
    assert address.target not in repr(address)
    spec = {"command": ["true"], "notify": [text]}
    assert without_addresses(spec)["notify"] == [address.shown]


@pytest.mark.parametrize(
    ("addresses", "fault"),
    [
        (["ftp://hunter2.example.org"], "is no address of http or https"),
        (["hunter2"], "slack:https://HOST"),
        (["slack:hunter2"], "is no address of http or https"),
        (["mail:hunter2"], "is no plain address"),
        (["https://x.org/" + "a" * 2000], "has 2014 characters"),
        ([f"https://x.org/{n}" for n in range(6)], "5"),
    ],
)
def test_a_bad_address_is_refused_by_its_field(
    addresses: list[str], fault: str
) -> None:
    with pytest.raises(InvalidInputError, match=fault) as caught:
        parse_spec({"command": ["true"], "notify": addresses})
    assert caught.value.faults[0].field.startswith("notify")
    if "mail" not in addresses[0]:
        assert "hunter2" not in str(caught.value)
