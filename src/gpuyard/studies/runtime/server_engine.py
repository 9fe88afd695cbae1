# pyright: basic
"""The engines that are servers: one process starts a server and asks it."""

import http.client
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from .errors import RunError
from .experiment import Experiment
from .generated_answer import GeneratedAnswer, TokenConfidence
from .launch import LaunchedProcess
from .prompts import Prompt
from .server_commands import HOST, SERVERS, ServerStart
from .vllm_engine import LAUNCHER, seed_of

_LOAD_S = 1800
_STOP_S = 30
_ID = "token_id:"


class ServerEngine:
    """A server with OpenAI's API, which this process starts and asks.

    It counts neither bytes nor communication. On nodes other than the first it only
    serves: see `serve_until_done`.
    """

    bytes_read = bytes_share = 0

    def __init__(self, experiment: Experiment, launch: LaunchedProcess) -> None:
        self.name = experiment.engine
        self.version = ""
        self._experiment = experiment
        self._kind = SERVERS[experiment.engine]
        self._start = ServerStart.of(experiment, launch, _free_port())
        self._process: subprocess.Popen[bytes] | None = None

    def load(self) -> None:
        """Start the server and wait until it answers; raises `RunError`."""
        process = self._launch()
        deadline = time.monotonic() + _LOAD_S
        while not self._is_healthy():
            if process.poll() is not None:
                raise RunError(
                    f"the server of {self.name} ended with exit code"
                    f" {process.returncode} before it answered"
                )
            if time.monotonic() > deadline:
                self.close()
                raise RunError(f"{self.name} did not answer within {_LOAD_S} s")
            time.sleep(0.2)
        self.version = self._read_version()

    def serve_until_done(self) -> None:
        """Serve on a node other than the first, until the first one has its metrics.

        Raises `RunError` if the server ends before.
        """
        process = self._launch()
        done = self._experiment.metrics_path(0)
        while not done.exists():
            if process.poll() is not None and not done.exists():
                raise RunError(
                    f"the part of {self.name} on this node ended with exit code"
                    f" {process.returncode}"
                )
            time.sleep(0.5)
        self.close()

    def close(self) -> None:
        """End the server with all its processes."""
        if self._process is None:
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self._process.pid, number)
                self._process.wait(_STOP_S)
            except ProcessLookupError:
                break
            except subprocess.TimeoutExpired:
                continue
        self._process.wait()

    def warm_up(self) -> None:
        """Generate two tokens."""
        self.answer(Prompt("warm-up", "", (0, 0)), 2)

    def generate(self, batch: Sequence[Prompt]) -> list[GeneratedAnswer]:
        """Return the answers to a batch, which the server gets at once."""
        with ThreadPoolExecutor(len(batch)) as threads:
            return list(threads.map(self.answer, batch))

    def communication_s(self) -> float | None:
        """Return None, because the server does not tell."""
        return None

    def answer(self, prompt: Prompt, limit: int | None = None) -> GeneratedAnswer:
        """Return the answer to one prompt, with the times at which its parts came.

        Raises `RunError` when the server refuses or breaks off.
        """
        began = time.perf_counter()
        body = self._body(prompt, limit or self._experiment.max_new_tokens)
        answer = GeneratedAnswer(prompt, text="")
        try:
            for event in _events(self._start.port, body):
                _add(answer, event, time.perf_counter() - began)
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise RunError(
                f"{self.name} did not answer {prompt.prompt_id}: {error}"
            ) from error
        if answer.token_count is None:
            answer.token_count = len(answer.token_ids) or len(answer.times)
        if not answer.knows_tokens:
            answer.token_ids = []
            answer.confidence = []
        return answer

    def _body(self, prompt: Prompt, limit: int) -> dict[str, Any]:
        experiment = self._experiment
        body: dict[str, Any] = {
            "model": str(experiment.model_path),
            "prompt": list(prompt.token_ids),
            "max_tokens": limit,
            "temperature": experiment.temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
            "ignore_eos": experiment.ignore_eos,
            **self._kind.extra,
        }
        if experiment.temperature == 0:
            return {**body, "logprobs": 2}
        return {
            **body,
            "top_p": experiment.top_p,
            "top_k": experiment.top_k or -1,
            "seed": seed_of(experiment.seed, prompt.prompt_id),
        }

    def _launch(self) -> subprocess.Popen[bytes]:
        """Start the process; what the launcher says of its own is not for it."""
        command = self._kind.command(self._start)
        environment = {
            name: value for name, value in os.environ.items() if name not in LAUNCHER
        }
        try:
            self._process = subprocess.Popen(
                command, env=environment, start_new_session=True
            )
        except OSError as error:
            raise RunError(f"{command[0]} cannot be started here: {error}") from error
        return self._process

    def _is_healthy(self) -> bool:
        try:
            return _get(self._start.port, "/health")[0] == http.client.OK
        except (OSError, http.client.HTTPException):
            return False

    def _read_version(self) -> str:
        try:
            _, content = _get(self._start.port, self._kind.version_path)
            return str(json.loads(content).get("version") or "")
        except (OSError, ValueError, AttributeError, http.client.HTTPException):
            return ""


def _add(answer: GeneratedAnswer, event: dict[str, Any], now: float) -> None:
    """Add a part of a streamed answer."""
    if event.get("error"):
        raise ValueError(str(event["error"]))
    for choice in event.get("choices") or ():
        text = choice.get("text") or ""
        told = choice.get("logprobs") or {}
        answer.text = (answer.text or "") + text
        if text or told.get("tokens"):
            answer.times.append(now)
            answer.finished_s = now
        _add_tokens(answer, told)
        answer.finish_reason = choice.get("finish_reason") or answer.finish_reason
    usage = event.get("usage") or {}
    if usage.get("completion_tokens") is not None:
        answer.token_count = int(usage["completion_tokens"])


def _add_tokens(answer: GeneratedAnswer, told: dict[str, Any]) -> None:
    """Add tokens that are told by their ids, and how sure the model was of them."""
    tokens = told.get("tokens") or []
    leads = told.get("top_logprobs") or [{}] * len(tokens)
    for token, own, top in zip(tokens, told.get("token_logprobs") or (), leads):  # noqa: B905
        number = _token_id(token)
        if number is None:
            return
        answer.token_ids.append(number)
        others = {
            other: value
            for name, value in (top or {}).items()
            if (other := _token_id(name)) is not None and other != number
        }
        if others:
            runner_up = max(others, key=lambda other: others[other])
            answer.confidence.append(TokenConfidence(own, runner_up, others[runner_up]))


def _token_id(name: str) -> int | None:
    rest = name.removeprefix(_ID)
    return int(rest) if rest != name and rest.isdigit() else None


def _get(port: int, path: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(HOST, port, timeout=10)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def _events(port: int, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Ask for a completion, and yield its events as they come."""
    connection = http.client.HTTPConnection(HOST, port, timeout=_LOAD_S)
    try:
        content = json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        connection.request("POST", "/v1/completions", content, headers)
        response = connection.getresponse()
        if response.status != http.client.OK:
            said = response.read(500).decode(errors="replace")
            raise ValueError(f"HTTP {response.status}: {said}")
        for line in response:
            data = line.strip().removeprefix(b"data:").strip()
            if not line.startswith(b"data:"):
                continue
            if data == b"[DONE]":
                return
            yield json.loads(data)
        raise ValueError("the answer broke off")
    finally:
        connection.close()


def _free_port() -> int:
    with socket.socket() as found:
        found.bind((HOST, 0))
        return int(found.getsockname()[1])
