"""The addresses that a new job names to be told of its end: their rows in the ledger,
and which it may name.
"""

from collections.abc import Callable

import msgspec

from gpuyard.config.settings import NotifySettings
from gpuyard.controller.intake import Template
from gpuyard.domain.end_notices import NoticeAddress, NoticeForm
from gpuyard.domain.errors import InvalidInputError
from gpuyard.domain.events import Change, Table
from gpuyard.domain.public_addresses import is_public


class _Notify(msgspec.Struct):
    notify: tuple[str, ...] = ()


_decoder = msgspec.json.Decoder(_Notify)


def new_notices(thing_id: str, template: Template) -> list[Change]:
    """The rows of a new job or array."""
    return [
        Change(
            Table.NOTICES,
            f"{thing_id}/{number}",
            {
                "job_id": thing_id,
                "address": address,
                "owner": template.user,
                "told_at": None,
                "problem": None,
            },
        )
        for number, address in enumerate(_addresses_of(template))
    ]


def refuse_addresses(
    template: Template,
    settings: NotifySettings,
    mailbox_of: Callable[[str], str | None],
) -> None:
    """InvalidInputError for addresses that this instance cannot tell, or may not for
    this user. `mailbox_of` gives the address at which a user has signed in.
    """
    for text in _addresses_of(template):
        address = NoticeAddress.parse(text)
        if address.form is NoticeForm.MAIL:
            _refuse_mailbox(address, template.user, settings, mailbox_of)
        else:
            _refuse_host(address, template.user, settings)


def _refuse_mailbox(
    address: NoticeAddress,
    user: str | None,
    settings: NotifySettings,
    mailbox_of: Callable[[str], str | None],
) -> None:
    """A user may have e-mails sent to itself, and to whom the settings name: nobody
    shall get unwanted ones in the name of this instance.
    """
    if settings.email is None:
        raise InvalidInputError.of(
            "notify",
            "names a mailbox, and this instance sends no e-mails",
            "ask an administrator to set [notify.email], or give a URL",
        )
    if user is None or settings.mails_to(address.target):
        return
    own = mailbox_of(user)
    if own is not None and own.lower() == address.target.lower():
        return
    remedy = "ask an administrator to add it to [notify] mail_to"
    if own is not None:
        remedy = f"give your own, {own}, or {remedy}"
    raise InvalidInputError.of(
        "notify", f"names {address.target}, to which your jobs send no e-mails", remedy
    )


def _refuse_host(
    address: NoticeAddress, user: str | None, settings: NotifySettings
) -> None:
    is_known = user is None or address.host in settings.internal_hosts
    if not is_known and _is_internal(address.host):
        raise InvalidInputError.of(
            "notify",
            f"names {address.host}, which is no host of the public internet",
            "ask an administrator to add it to [notify] internal_hosts, or give"
            " another",
        )


def _addresses_of(template: Template) -> tuple[str, ...]:
    # Few jobs have any, and jobs come by the thousand.
    if b'"notify"' not in template.rest:
        return ()
    return _decoder.decode(template.rest).notify


def _is_internal(host: str) -> bool:
    """Whether a host is known to be one, without a look-up of its name."""
    try:
        return not is_public(host)
    except ValueError:
        return host == "localhost"
