"""Readers of `logs -f` that do not read: they cost little, and delay nobody."""

import os
import socket
from collections.abc import Iterator
from http.client import HTTPResponse

import httpx
import psutil
import pytest

from tests.support.instance import TestInstance, make_instance
from tests.support.wait import wait_until
from tests.support.web import http

# Set to 1000 to repeat the attack of the review.
READERS = int(os.environ.get("GPUYARD_LOG_READERS", "150"))
LINES = 20_000
TALK = f"""
print(("x" * 999 + "\\n") * {LINES}, flush=True)
import time; time.sleep(1000)
"""


@pytest.fixture
def instance() -> Iterator[TestInstance]:
    with make_instance() as made:
        yield made


def mute_reader(web: httpx.Client, job_id: str) -> socket.socket:
    """A connection that follows the output of a job, with as small a buffer as can
    be.
    """
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
    connection.connect((web.base_url.host, web.base_url.port))
    request = (
        f"GET /api/v1/jobs/{job_id}/logs?follow=true HTTP/1.1\r\nHost: instance\r\n"
        f"Authorization: {web.headers['Authorization']}\r\n\r\n"
    )
    connection.sendall(request.encode())
    return connection


def test_readers_that_never_read_cost_little_and_delay_nobody(
    instance: TestInstance,
) -> None:
    job_id = instance.submit(["python3", "-c", TALK])
    instance.wait(job_id, "running")
    processes = [psutil.Process(instance.pid(name)) for name in ("server", "agent")]
    with http(instance) as web:
        log = f"/api/v1/jobs/{job_id}/logs"
        whole = wait_until(
            lambda: len(text := web.get(log).content) > LINES * 1000 and text,
            what="the output",
        )
        before = sum(process.memory_info().rss for process in processes)
        readers = [mute_reader(web, job_id) for _ in range(READERS)]
        wait_until(
            lambda: all(reader.recv(1, socket.MSG_PEEK) for reader in readers),
            what="all to be answered",
        )
        # Reports and heartbeats have their turn all the same.
        other = instance.submit(["true"])
        assert instance.wait(other).state == "completed"
        grown = sum(process.memory_info().rss for process in processes) - before
        assert grown < READERS * 300_000
        web.post(f"/api/v1/jobs/{job_id}/cancel")
        answer = HTTPResponse(readers[0])
        answer.begin()
        assert answer.read() == whole
    for reader in readers:
        reader.close()
