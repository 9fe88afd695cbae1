"""Whoever is told of events: a webhook, or a person's mailbox."""

from collections.abc import Mapping

from gpuyard.config.settings import NotifySettings
from gpuyard.notify.mailbox import Mailbox, read_mailboxes
from gpuyard.notify.webhook import Webhook, read_webhooks

Receiver = Webhook | Mailbox


def read_receivers(
    settings: NotifySettings, environment: Mapping[str, str]
) -> tuple[Receiver, ...]:
    """Everybody who is to be told.

    Raises InvalidInputError when the environment lacks a key or a password.
    """
    return (
        *read_webhooks(settings.webhooks, environment),
        *read_mailboxes(settings.email, environment),
    )
