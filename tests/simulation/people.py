"""The people of the simulation: they submit, cancel and resume, and ask again until
they are answered.
"""

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpuyard.domain.errors import (
    CapacityError,
    GpuyardError,
    LedgerError,
    NotFoundError,
    RefusedError,
)
from tests.simulation.server import Ask, UnansweredError

if TYPE_CHECKING:
    from tests.simulation.world import World


@dataclass
class Wish:
    """A job somebody was told has been taken: its spec, and what they asked for
    since.
    """

    id: str
    body: dict[str, Any]
    cancelled: bool = False
    resumes: int = 0


class People:
    """`wishes` are the acknowledged jobs by idempotency key."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.dice = world.dice
        self.wishes: dict[str, Wish] = {}
        self.keys = 0

    async def live(self) -> None:
        """Make so many requests during the storm; ends when all are answered."""
        weather = self.world.weather
        async with asyncio.TaskGroup() as group:
            for _ in range(weather.requests):
                group.create_task(self._act(self.dice.uniform(0, weather.storm_s)))

    async def _act(self, at: float) -> None:
        await asyncio.sleep(at)
        wishes = list(self.wishes.values())
        what = self.dice.choice(("submit", "submit", "submit", "cancel", "resume"))
        if what == "submit" or not wishes:
            brief = self.dice.random() < 0.15
            await self._submit(
                [self._brief() for _ in range(12)]
                if brief
                else [self._body(n) for n in range(self.dice.choice((1, 1, 1, 3)))]
            )
        elif what == "cancel":
            await self._cancel(self.dice.choice(wishes))
        else:
            await self._resume(self.dice.choice(wishes))

    # --- requests ---

    async def _submit(self, bodies: list[dict[str, Any]]) -> None:
        # Some send twice at once: a proxy that retries.
        copies = self.dice.choice((1, 1, 1, 2))
        answers = await asyncio.gather(
            *(
                self._until_answered(lambda c: c.requests.submit(bodies), "submit")
                for _ in range(copies)
            )
        )
        for ids in answers:
            for body, job_id in zip(bodies, ids, strict=True):
                wish = self.wishes.setdefault(
                    body["idempotency_key"], Wish(job_id, body)
                )
                self.world.note(f"acknowledged {job_id} for {body['idempotency_key']}")
                self.world.promises.acknowledged(wish, job_id)

    async def _cancel(self, wish: Wish) -> None:
        await self._until_answered(
            lambda c: c.requests.cancel(wish.id), f"cancel {wish.id}"
        )
        wish.cancelled = True
        self.world.promises.cancelled(wish)

    async def _resume(self, wish: Wish) -> None:
        wish.resumes += 1
        wish.cancelled = False
        await self._until_answered(
            lambda c: c.requests.resume(wish.id, None),
            f"resume {wish.id}",
            patient=False,
        )

    async def _until_answered(
        self, request: Ask, what: str, *, patient: bool = True
    ) -> Any:
        """Ask until there is an answer; a refusal is one, too, where it is final."""
        while True:
            server = self.world.server
            try:
                if server is not None:
                    self.world.note(f"asks: {what}")
                    return await server.ask(request)
            except (UnansweredError, LedgerError, CapacityError) as error:
                self.world.note(f"not answered: {what}: {error!r}")
                if not patient:
                    return None
            except (RefusedError, NotFoundError) as error:
                self.world.note(f"refused: {error}")
                if what == "submit":
                    self.world.promises.broken(f"a submission was refused: {error}")
                return None
            except GpuyardError as error:
                self.world.promises.broken(f"{what} failed: {error!r}")
                return None
            await asyncio.sleep(self.dice.uniform(0.1, 2.0))

    # --- what they want ---

    def _brief(self) -> dict[str, Any]:
        """One of many short jobs of a kind: such are sent ahead."""
        self.keys += 1
        return {
            "command": ["sim", "0.02", "0"],
            "name": "brief",
            "retry_count": 0,
            "priority": 3,
            "resources": {},
            "idempotency_key": f"key-{self.keys}",
        }

    def _body(self, position: int) -> dict[str, Any]:
        dice = self.dice
        self.keys += 1
        codes = dice.choice(("0", "0", "0", "1", "1,0", "1,1,0", "7,0"))
        seconds = dice.choice((0.01, 0.3, 2.0, 8.0))
        command = [
            "sim",
            str(seconds),
            codes,
            *(["stubborn"] if dice.random() < 0.2 else []),
        ]
        body: dict[str, Any] = {
            "command": command,
            "name": f"job-{self.keys}",
            "idempotency_key": f"key-{self.keys}",
        }
        body["retry_count"] = dice.choice((0, 1, 3))
        body["resources"] = dice.choice(({}, {"cpus": 2}, {"gpus": 1}, {"gpus": 2}))
        if len(self.world.machines) > 1 and dice.random() < 0.1:
            body["resources"] = {"nodes": 2}
        if not any(machine.host.gpus for machine in self.world.machines):
            body["resources"].pop("gpus", None)
        if dice.random() < 0.2:
            body["timeout_s"] = dice.choice((1.0, 5.0))
        if dice.random() < 0.2:
            body["max_silence_s"] = dice.choice((1.0, 10.0))
            body["checkpoint"] = {"grace_s": 0.0}
        if dice.random() < 0.2:
            body["checkpoint"] = {"path": "ckpt-*.pt", "grace_s": 1.0}
        if dice.random() < 0.25:
            parents = [wish.id for wish in self.wishes.values()] + [
                f"job-{self.keys - 1}"
            ] * bool(position)
            body["depends_on"] = dice.sample(parents, min(len(parents), 1))
        body["priority"] = dice.choice((1, 3, 5))
        return body
