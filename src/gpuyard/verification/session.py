"""A session: everything that a command of verification works with, opened together and closed together."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from gpuyard.client.aio import AsyncClient
from gpuyard.config.paths import Home
from gpuyard.config.settings import load_settings
from gpuyard.config.verification import VerificationSettings
from gpuyard.domain.errors import InvalidInputError
from gpuyard.domain.gpus import GPUClass
from gpuyard.domain.ids import new_id
from gpuyard.storage.blobs import Blobs, BlobStore, open_blobs
from gpuyard.verification import keys
from gpuyard.verification.batch import Batch, Ports, Terms
from gpuyard.verification.calibration import Range
from gpuyard.verification.channels import YardChannels
from gpuyard.verification.claims import Claim, Expected
from gpuyard.verification.classes import TRAITS, Class
from gpuyard.verification.context import Context, load_generator
from gpuyard.verification.database import Database
from gpuyard.verification.ending import Ending
from gpuyard.verification.excusing import YARD, excuse
from gpuyard.verification.executors import Executor, trusted
from gpuyard.verification.hub import Hub
from gpuyard.verification.records import Records
from gpuyard.verification.trusting import JobTrusted
from gpuyard.verification.vram import gigabytes_to_ask
from gpuyard.verification.yard import SolverJobs, lay_out


@dataclass(frozen=True, slots=True)
class Store:
    """What verification keeps, without the yard: enough to look at."""

    settings: VerificationSettings
    folder: Path
    records: Records
    blobs: Blobs

    @property
    def evidence(self) -> Path:
        """The folder of signed evidence, a file for each check."""
        return self.folder / "evidence"

    def key(self) -> Ed25519PrivateKey:
        """The yard's own; made at the first use."""
        return keys.yard_key(self.folder)

    def deadline_s(self, cls: Class) -> float:
        """How long a class may take from the seed to the answers' hash: as calibrated, or its traits' guess."""
        found = self.records.ranges(cls).get("solve_s")
        return found.high if found else TRAITS[cls].solve_s


def open_store(home: Home | None = None) -> tuple[Store, Database]:
    """What is kept under `home`, and the database to close; InvalidInputError for settings that can never work."""
    home = home or Home.find()
    settings = load_settings(home).verification
    for name, key in settings.issuers.items():  # later on nobody would be blamed for declining
        keys.read_public(key, f"verification.issuers.{name}")
    folder = home.verification
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        fault = f"{folder} cannot be made: {error.strerror}"
        raise InvalidInputError.of("GPUYARD_HOME", fault, "set it to a folder you can write to") from None
    blobs = _open_blobs(settings.blobs, folder)
    database = Database.open(settings.database or folder / "verification.db")
    return Store(settings, folder, Records(database), blobs), database


def _open_blobs(where: str | None, folder: Path) -> Blobs:
    if where is None:
        return BlobStore(folder / "blobs")
    try:
        return open_blobs(where, {}, scratch=folder)
    except InvalidInputError as error:
        raise InvalidInputError([replace(fault, field="verification.blobs") for fault in error.faults]) from None


@dataclass(frozen=True, slots=True)
class Session:
    """A store, and the yard that does the work. `trusted` are the trusted executors by class."""

    store: Store
    client: AsyncClient
    jobs: SolverJobs
    hub: Hub
    context: Context
    trusted: dict[Class, JobTrusted]

    def batch(
        self, executors: Sequence[Executor], folder: Path, *, claims: frozenset[Claim], ending: Ending
    ) -> Batch:  # fmt: skip
        """A batch that is ready to run; it puts answer files into `folder`."""
        classes = {executor.gpu_class for executor in executors}
        terms = {cls: self._terms(cls, claims=claims) for cls in classes}
        deadlines = {cls: term.deadline_s for cls, term in terms.items()}
        opens = YardChannels(self.jobs, self.hub, deadlines)
        issuers = {YARD: keys.public_hex(self.store.key()), **self.store.settings.issuers}
        excuses = partial(excuse, self.context.records, issuers)
        ports = Ports(self.context, opens, new_id("holder"), terms, excuses, folder, keep=ending.keep, tell=ending.tell)
        return Batch(ports)

    def _terms(self, cls: Class, *, claims: frozenset[Claim]) -> Terms:
        deadline_s = self.store.deadline_s(cls)
        if not claims or not isinstance(cls, GPUClass):
            return Terms(deadline_s, Expected(cls.value))
        ranges = {name: Range(one.low, one.high) for name, one in self.store.records.ranges(cls).items()}
        # An inventory takes no time that would tell anything.
        timed = ranges.get("claims_s") if claims - {Claim.INVENTORY} else None
        wanted = Expected(
            cls.value, inventory=Claim.INVENTORY in claims, speed=Claim.SPEED in claims,
            vram_gb=gigabytes_to_ask(cls) if Claim.VRAM in claims else 0.0, ranges=ranges,
            claims_s=timed.high if timed else None,
        )  # fmt: skip
        return Terms(deadline_s, wanted)


@asynccontextmanager
async def open_session(home: Home | None = None) -> AsyncGenerator[Session]:
    """Open everything; the embedded server is started if none runs."""
    store, database = open_store(home)
    try:
        settings = store.settings
        listen = Hub(settings.host, settings.port, public_host=settings.public_host)
        async with AsyncClient() as client, listen as hub:
            jobs = SolverJobs(client, lay_out(store.folder))
            known = {
                cls: JobTrusted(executor, jobs, partial(store.deadline_s, cls))
                for cls, executor in trusted(settings.executors).items()
            }
            context = Context(
                store.records, store.blobs, known.get, policy=settings, generator=load_generator(settings.generator)
            )
            yield Session(store, client, jobs, hub, context, known)
    finally:
        database.close()


def with_policy(session: Session, **numbers: int) -> Session:
    """The session with other numbers in its policy."""
    policy = session.context.policy.model_copy(update=numbers)
    return replace(session, context=replace(session.context, policy=policy))
