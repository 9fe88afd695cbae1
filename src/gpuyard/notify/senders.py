"""What sends to each sort of receiver. The clients of HTTP and of SMTP are imported
only where somebody needs them.
"""

from typing import TYPE_CHECKING

from gpuyard.notify.delivery_result import DeliveryResult
from gpuyard.notify.mailbox import Mailbox
from gpuyard.notify.payload import Payload
from gpuyard.notify.receiver import Receiver

if TYPE_CHECKING:
    from gpuyard.notify.delivery import Delivery
    from gpuyard.notify.email_delivery import EmailDelivery


class Senders:
    """A `Deliverer` for webhooks and mailboxes."""

    def __init__(self) -> None:
        self._web: dict[bool, Delivery] = {}
        self._mail: EmailDelivery | None = None

    async def deliver(self, receiver: Receiver, payload: Payload) -> DeliveryResult:
        """Try once."""
        if isinstance(receiver, Mailbox):
            return await self._by_mail().deliver(receiver, payload)
        web = self._by_web(public_only=receiver.public_only)
        return await web.deliver(receiver, payload)

    def _by_mail(self) -> "EmailDelivery":
        if self._mail is None:
            from gpuyard.notify.email_delivery import EmailDelivery

            self._mail = EmailDelivery()
        return self._mail

    def _by_web(self, *, public_only: bool) -> "Delivery":
        known = self._web.get(public_only)
        if known is None:
            from gpuyard.notify.delivery import Delivery

            known = self._web[public_only] = Delivery(public_only=public_only)
        return known

    async def close(self) -> None:
        """Release the connections."""
        for web in self._web.values():
            await web.close()
        if self._mail is not None:
            await self._mail.close()
