"""The secrets of jobs: whether they exist, their values for a launch, and what must be
hidden in the output and the messages of an attempt.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress

from gpuyard.config.paths import Home
from gpuyard.config.settings import Settings
from gpuyard.domain.errors import Fault, GpuyardError, InvalidInputError
from gpuyard.domain.jobspec import JobSpec
from gpuyard.domain.masking import Mask
from gpuyard.domain.secret_facts import SecretFacts
from gpuyard.domain.secret_names import MASK, looks_like_key
from gpuyard.storage.secret_sources import (
    SecretMissingError,
    SecretSources,
    SecretUnavailableError,
)


class SecretRemovedError(SecretMissingError):
    """The ledger no longer has the value of a variable of an old job."""

    def __init__(self, variable: str) -> None:
        GpuyardError.__init__(
            self,
            f"The value of {variable} was removed from the ledger.",
            f"Submit the job again with --secret {variable}.",
        )


_NOTHING = Mask(())


class Secrets:
    """Gives values to attempts, and remembers until their ends what to hide."""

    def __init__(
        self, sources: SecretSources, reserved: frozenset[str] = frozenset()
    ) -> None:
        """`reserved`: the server's own shared secrets, which no job gets."""
        self.sources = sources
        self._reserved = reserved
        self._masks: dict[str, Mask] = {}

    @classmethod
    def of(cls, settings: Settings, home: Home) -> "Secrets":
        """Those of the sources that the settings name."""
        sources = SecretSources(settings.secrets.root(home), settings.secrets)
        return cls(sources, settings.sign_in.own_secrets)

    def listing(self) -> list[SecretFacts]:
        """The secrets whose names are known, by name, the shared one first."""
        return [
            facts.model_copy(update={"reserved": self._is_reserved(facts)})
            for facts in self.sources.listing()
        ]

    def _is_reserved(self, facts: SecretFacts) -> bool:
        return facts.owner is None and facts.name in self._reserved

    async def _value(self, name: str, owner: str | None) -> str:
        """What a job of `owner` gets. SecretMissingError, SecretUnavailableError,
        RefusedError.
        """
        if name in self._reserved and not self.sources.has_own(name, owner):
            raise SecretMissingError(name)
        return await self.sources.value(name, owner)

    async def check(self, secrets: Mapping[str, str], owner: str | None) -> None:
        """InvalidInputError if a job of `owner` refers to a secret that does not exist.

        `secrets` are names of secrets by variable. A source that does not answer is
        asked again at the launch.
        """
        faults: list[Fault] = []
        for variable, name in secrets.items():
            try:
                with suppress(SecretUnavailableError):
                    await self._value(name, owner)
            except SecretMissingError:
                fault = f"there is no secret {name!r}"
                remedy = f"set it first: gpuyard secret set {name}"
                faults.append(Fault(f"secrets.{variable}", fault, remedy))
        if faults:
            raise InvalidInputError(faults)

    async def values(self, attempt_id: str, spec: JobSpec) -> dict[str, str]:
        """The values for an attempt, by variable. SecretMissingError,
        SecretUnavailableError, RefusedError.
        """
        for variable, value in spec.environment.items():
            if value == MASK and looks_like_key(variable):
                raise SecretRemovedError(variable)
        if not spec.secrets:
            return {}
        values = {
            variable: await self._value(name, spec.user)
            for variable, name in spec.secrets.items()
        }
        self._masks[attempt_id] = Mask(values.values())
        self.sources.note_use(spec.secrets.values(), spec.user)
        return values

    async def mask(self, attempt_id: str, spec: JobSpec) -> Mask:
        """What to hide in the output of an attempt; after a restart of the server, the
        present values.
        """
        if spec.secrets and attempt_id not in self._masks:
            values: list[str] = []
            for name in spec.secrets.values():
                with suppress(GpuyardError, OSError):
                    values.append(await self._value(name, spec.user))
            self._masks[attempt_id] = Mask(values)
        return self._masks.get(attempt_id, _NOTHING)

    def hide(self, attempt_id: str, text: str) -> str:
        """`text` without the values that the attempt got."""
        return self._masks.get(attempt_id, _NOTHING).hide_text(text)

    def forget(self, attempt_ids: Iterable[str]) -> None:
        """These attempts have ended."""
        for attempt_id in attempt_ids:
            self._masks.pop(attempt_id, None)
