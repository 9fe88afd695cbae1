"""Calls to AWS through boto3, as fast as AWS takes them.

boto3 is synchronous, so calls run in threads. The first call imports it. Each call that
we make may be repeated: RunInstances carries a client token.
"""

# boto3 has no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportMissingTypeStubs=false
import asyncio
import logging
import threading
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, cast

from gpuyard.providers.aws.config import AwsConfig
from gpuyard.providers.aws.errors import (
    NOT_CONNECTED,
    THROTTLED,
    TIMEOUT,
    AwsError,
    Question,
    explained,
)
from gpuyard.providers.instances.api import CREDENTIALS
from gpuyard.providers.instances.call_turns import CallTurns

Json = dict[str, Any]
_AT_ONCE = 16
# A call that AWS refuses for so long as too fast is given up.
_PATIENCE_S = 120.0
# How often a call is sent whose answer does not come.
_TRIES = 3
_PAUSE_S = 0.5  # after the first of them; it doubles


class _Way:
    """How one kind of call goes to one region."""

    def __init__(self) -> None:
        self.turns = CallTurns()
        self.places = asyncio.Semaphore(_AT_ONCE)


class AwsCalls:
    """The account that the settings name."""

    def __init__(self, settings: AwsConfig) -> None:
        self._settings = settings
        self._threads = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="aws")
        self._ways: defaultdict[tuple[str, str], _Way] = defaultdict(_Way)
        self._making = threading.Lock()
        self._session: Any = None
        self._clients: dict[tuple[str, str], Any] = {}

    async def call(
        self, service: str, region: str, operation: str, **parameters: Any
    ) -> Json:
        """The answer to `operation` (`RunInstances`); AwsError says why there is none.

        A call that comes too fast for AWS waits, and one without an answer is repeated.
        """
        way = self._ways[region, operation]
        question = Question(operation, region)
        refused_at: float | None = None
        tries = 0
        while True:
            async with way.places:
                sent_at = await way.turns.wait()
                try:
                    answer = await self._send(service, question, parameters)
                except AwsError as error:
                    now = time.monotonic()
                    if error.error_code == THROTTLED:
                        way.turns.pace.refused(now, sent_at)
                        refused_at = refused_at or now
                        if now - refused_at > _PATIENCE_S:
                            raise
                        continue
                    tries += 1
                    is_lost = error.error_code in (NOT_CONNECTED, TIMEOUT)
                    if not is_lost or tries == _TRIES:
                        raise
                else:
                    way.turns.pace.accepted(time.monotonic())
                    return answer
            await asyncio.sleep(_PAUSE_S * 2 ** (tries - 1))

    async def pages(
        self, region: str, operation: str, rows: str, **parameters: Any
    ) -> AsyncIterator[Json]:
        """The rows of all pages of an answer of EC2."""
        token = ""
        while True:
            page = {**parameters, "NextToken": token} if token else parameters
            answer = await self.call("ec2", region, operation, **page)
            for row in answer.get(rows) or ():
                yield row
            token = answer.get("NextToken") or ""
            if not token:
                return

    def close(self) -> None:
        """Shut down the threads; a call that hangs ends by itself."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _send(self, service: str, question: Question, parameters: Json) -> Json:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(
            self._threads, self._send_here, service, question, parameters
        )

    # --- in a thread ---

    def _send_here(self, service: str, question: Question, parameters: Json) -> Json:
        try:
            client = self._client(service, question.region)
            return cast("Json", client._make_api_call(question.operation, parameters))
        except Exception as error:  # noqa: BLE001  (whatever botocore raises)
            found = explained(error, question)
            if found.error_code == CREDENTIALS:
                self._forget_session()
            raise found from None

    def _client(self, service: str, region: str) -> Any:
        with self._making:
            client = self._clients.get((service, region))
            if client is None:
                client = self._made_client(service, region)
                self._clients[service, region] = client
            return client

    def _made_client(self, service: str, region: str) -> Any:
        import boto3
        from botocore.config import Config

        settings = self._settings
        if self._session is None:
            # At debug level it would log whole requests.
            logging.getLogger("botocore").setLevel(logging.INFO)
            logging.getLogger("boto3").setLevel(logging.INFO)
            self._session = boto3.Session(
                **_key(settings),
                profile_name=settings.profile or None,
                botocore_session=_plain_session(),
            )
        config = Config(
            connect_timeout=settings.timeout_s,
            read_timeout=settings.timeout_s,
            retries={"mode": "standard", "total_max_attempts": 1},
            max_pool_connections=_AT_ONCE,
        )
        return self._session.client(
            service,
            region_name=region,
            endpoint_url=settings.endpoint or None,
            config=config,
        )

    def _forget_session(self) -> None:
        """Read the key again for the next call; it may have been replaced."""
        with self._making:
            self._session = None
            self._clients.clear()


@cache
def _loader() -> Any:
    """Reads boto3's descriptions of services, which takes it a while, once."""
    from botocore.loaders import create_loader

    return create_loader()


def _plain_session() -> Any:
    from botocore.session import Session

    session = Session()
    session.register_component("data_loader", _loader())
    return session


def _key(settings: AwsConfig) -> dict[str, str | None]:
    (key_id, key, token) = (
        value.get_secret_value() if value else None
        for value in (
            settings.access_key_id,
            settings.secret_access_key,
            settings.session_token,
        )
    )
    return {
        "aws_access_key_id": key_id,
        "aws_secret_access_key": key,
        "aws_session_token": token,
    }
