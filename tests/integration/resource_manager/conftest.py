"""A controller with the resource manager, on a fake host with GPUs. Model servers are
small HTTP servers in this process; a test plays the workers.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gpuyard.config.settings import Settings
from gpuyard.controller.controller import Controller
from gpuyard.domain.attempt_order import AttemptOrder
from gpuyard.resource_manager.manager import ResourceManager
from tests.support.controlled import Controlled
from tests.support.fake_provider import FakeHost

MODEL = {
    "command": ["serve", "{port}"],
    "memory_gb": 12,
    "sleep": "/sleep",
    "wake": "/wake",
    "asleep": "/asleep",
}
SETTINGS: dict[str, Any] = {
    "models": {
        "chat": MODEL,
        "big": {"command": ["serve", "{port}"], "memory_gb": 12, "gpus": 2},
    },
    "scripts": {"count": {"memory_gb": 4}},
}


@dataclass
class Chat:
    """What all model servers answer to prompts, once they `may_answer`. `asked`: the
    prompts that reached one. A prompt in `breaks` gets no answer, as if the server had
    died; one in `sick` the status 500.
    """

    asked: list[str] = field(default_factory=list[str])
    may_answer: asyncio.Event = field(default_factory=asyncio.Event)
    breaks: set[str] = field(default_factory=set[str])
    sick: set[str] = field(default_factory=set[str])


class ModelServer:
    """Answers as a model server that can sleep."""

    def __init__(self, chat: Chat) -> None:
        self.chat = chat
        self.asleep = False
        self.server: asyncio.Server | None = None

    async def start(self, port: int) -> None:
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", port)

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        # gpuyard may be killed before it has asked.
        with suppress(asyncio.IncompleteReadError):
            await self._answer(reader, writer)
        writer.close()

    async def _answer(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        path = head.split(" ", 2)[1]
        if path in ("/sleep", "/wake"):
            self.asleep = path == "/sleep"
        choices: list[Any] = []
        status = "200 OK"
        if path == "/v1/chat/completions":
            length = int(head.lower().split("content-length: ")[1].split("\r\n")[0])
            body = json.loads(await reader.readexactly(length))
            text = body["messages"][-1]["content"]
            self.chat.asked.append(text)
            if text in self.chat.breaks:
                return
            if text in self.chat.sick:
                status = "500 Internal Server Error"
            await self.chat.may_answer.wait()
            choices = [{"message": {"content": f"re: {text}"}}]
        answer = json.dumps({"is_sleeping": self.asleep, "choices": choices})
        writer.write(
            f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(answer)}\r\nConnection: close\r\n\r\n"
            f"{answer}".encode()
        )
        await writer.drain()


class Managed(Controlled):
    """`servers`: the model servers that run, by attempt; none starts while
    `deaf_servers` is true.
    """

    def __init__(self, folder: Path, gpu_count: int) -> None:
        super().__init__(folder, **SETTINGS)
        self.hosts["node_1"] = FakeHost(gpu_count=gpu_count)
        self.servers: dict[str, ModelServer] = {}
        self.deaf_servers = False
        self.chat = Chat()
        self.chat.may_answer.set()

    def extend(self, controller: Controller) -> None:
        self.manager = ResourceManager(controller)

    async def restart_with(self, **settings: Any) -> None:
        """Crash, and start again with other settings."""
        await self.crash()
        self.settings = Settings(**{**SETTINGS, **settings})
        await self.start()

    async def stop(self) -> None:
        await self.manager.close()
        await super().stop()

    @property
    def loaded(self) -> list[tuple[str, str]]:
        """The models that are loaded, each with its phase."""
        residents = self.manager.residents.servers.live.values()
        return sorted((each.model, each.phase.value) for each in residents)

    async def run_servers(self) -> None:
        """Run a server for each attempt of a model on the host."""
        while True:
            for attempt_id, attempt in list(self.host.attempts.items()):
                server = self.servers.get(attempt_id)
                may_start = server is None and not self.deaf_servers
                if attempt.live and may_start and _is_model(attempt.order):
                    self.servers[attempt_id] = server = ModelServer(self.chat)
                    await server.start(int(attempt.order.command[-1]))
                if not attempt.live and server and server.server:
                    server.server.close()
                    server.server = None
            await asyncio.sleep(0.01)

    def workers(self, batch_id: str) -> dict[str, str]:
        """The live attempts of the batch's workers on the host, with their jobs."""
        return {
            attempt_id: attempt.order.job_id
            for attempt_id, attempt in self.host.attempts.items()
            if attempt.live and attempt.order.labels.get("batch") == batch_id
        }


def _is_model(order: AttemptOrder) -> bool:
    return order.command[:1] == ("serve",)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def gpu_count() -> int:
    return 2


@pytest.fixture
async def instance(tmp_path: Path, gpu_count: int) -> AsyncIterator[Managed]:
    made = Managed(tmp_path, gpu_count)
    await made.start()
    servers = asyncio.create_task(made.run_servers())
    yield made
    servers.cancel()
    made.check()
    await made.stop()
