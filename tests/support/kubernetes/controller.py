"""What all controllers have in common."""

from collections.abc import Callable

from tests.support.kubernetes.store import Store


class Controller:
    """Looks at the world after each change of it, and when it asked to be woken."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.clock = store.clock

    def reconcile(self) -> float | None:
        """Bring the world nearer to what is asked for.

        Returns in how many seconds to look again without a change.
        """
        raise NotImplementedError

    async def run(self, failed: Callable[[Exception], None]) -> None:
        """Reconcile for ever. `failed` hears of an error of the fake itself."""
        while True:
            version = self.store.version
            wake: float | None = 1.0
            try:
                wake = self.reconcile()
            except Exception as error:  # noqa: BLE001
                failed(error)
            await self.store.changed(version, wake)
