"""The section `notify` of the settings: who is told of what happens."""

from typing import Annotated

from pydantic import AfterValidator

from gpuyard.config.sections import Period, SettingsSection
from gpuyard.domain.emails import EmailSpec, mail_recipient
from gpuyard.domain.webhooks import Webhooks


class NotifySettings(SettingsSection):
    """Who gets notifications (see the guide on notifications).

    `give_up_s`: an event that a receiver has not taken for so long is put aside.
    `internal_hosts`: the jobs of all users may notify these hosts, although their
    addresses are none of the public internet, and through a proxy. `mail_to`: they may
    also send e-mails to these addresses and domains, besides the own of each user.
    """

    webhooks: Webhooks = ()
    email: EmailSpec | None = None
    give_up_s: Period = 6 * 3600.0
    internal_hosts: tuple[str, ...] = ()
    mail_to: tuple[Annotated[str, AfterValidator(mail_recipient)], ...] = ()

    def mails_to(self, address: str) -> bool:
        """Whether the jobs of all users may send e-mails to this address."""
        wanted = address.lower()
        return wanted in self.mail_to or wanted.rpartition("@")[2] in self.mail_to
