"""A session: everything that a command needs, opened and closed together."""

import time
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
from gpuyard.verification.attestation import read_root
from gpuyard.verification.batch import BatchSetup, ClassTerms, VerificationBatch
from gpuyard.verification.channels import InstanceChannels
from gpuyard.verification.check import INSTANCE, excuse
from gpuyard.verification.claims import Claim, Expected, limit_of, wanted_of
from gpuyard.verification.classes import TRAITS, Class
from gpuyard.verification.context import Context
from gpuyard.verification.database import Database
from gpuyard.verification.executors import (
    Executor,
    judging_executors,
    place_named,
    tolerance_of,
)
from gpuyard.verification.generators import load_generator
from gpuyard.verification.hub import Hub
from gpuyard.verification.packing import remove_old_programs
from gpuyard.verification.records import Records
from gpuyard.verification.settlement import Settlement
from gpuyard.verification.solver_jobs import SolverJobs
from gpuyard.verification.tolerance_limits import required_limits
from gpuyard.verification.trusted_executor import JobTrustedExecutor

# Longer than any job with one may take.
_PROGRAMS_KEPT_S = 2 * 86400.0


@dataclass(frozen=True, slots=True)
class VerificationStore:
    """What verification has stored. It can be read without the instance."""

    settings: VerificationSettings
    folder: Path
    records: Records
    blobs: Blobs

    @property
    def evidence(self) -> Path:
        """The folder of the signed evidence files, one for each check."""
        return self.folder / "evidence"

    def key(self) -> Ed25519PrivateKey:
        """The instance's own key, which is made at first use."""
        return keys.instance_key(self.folder)

    def deadline_s(self, cls: Class) -> float:
        """Seconds that a class may take from the seed to the hash.

        It is the calibrated value, or the guess in the class's traits.
        """
        found = self.records.ranges(cls).get(deadline_range(self.settings, cls))
        return found.high if found else TRAITS[cls].solve_s


SOLVE = "solve_s"
"""The name of the range of a class's solve times."""
SOLVE_PRINTED = "solve_printed_s"
"""The same of work with fingerprints, which takes longer."""


def deadline_range(settings: VerificationSettings, cls: Class) -> str:
    """The name of the range that holds the deadline of a class.

    Where tolerance is allowed, solvers make fingerprints, too.
    """
    return SOLVE_PRINTED if tolerance_of(settings, cls) else SOLVE


def open_store(home: Home | None = None) -> tuple[VerificationStore, Database]:
    """Open the store in `home`; returns it and the database, which you have to close.

    Raises InvalidInputError for settings that can never work.
    """
    home = home or Home.find()
    settings = load_settings(home).verification
    # A key that cannot be read would later excuse every executor that declines.
    for name, key in settings.issuers.items():
        keys.read_public(key, f"verification.issuers.{name}")
    if settings.attestation_root:
        read_root(_text_of(settings.attestation_root))
    folder = home.verification
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        fault = f"{folder} cannot be made: {error.strerror}"
        raise InvalidInputError.of(
            "GPUYARD_HOME", fault, "set it to a folder you can write to"
        ) from None
    blobs = _open_blobs(settings.blobs, folder)
    database = Database.open(settings.database or folder / "verification.db")
    return VerificationStore(settings, folder, Records(database), blobs), database


def _text_of(file: Path) -> str:
    try:
        return file.read_text()
    except (OSError, ValueError) as error:
        raise InvalidInputError.of(
            "verification.attestation_root",
            f"{file} cannot be read: {error}",
            "name the file of a certificate in PEM",
        ) from None


def _open_blobs(where: str | None, folder: Path) -> Blobs:
    if where is None:
        return BlobStore(folder / "blobs")
    try:
        return open_blobs(where, {}, scratch=folder)
    except InvalidInputError as error:
        raise InvalidInputError(
            [replace(fault, field="verification.blobs") for fault in error.faults]
        ) from None


@dataclass(frozen=True, slots=True)
class Session:
    """A store and the instance. `trusted`: the trusted executor of each class."""

    store: VerificationStore
    client: AsyncClient
    jobs: SolverJobs
    hub: Hub
    context: Context
    trusted: dict[Class, JobTrustedExecutor]

    def batch(
        self,
        executors: Sequence[Executor],
        folder: Path,
        *,
        claims: frozenset[Claim],
        ending: Settlement,
        every_prompt: bool,
    ) -> VerificationBatch:
        """Prepare a batch. It writes answer files into `folder`."""
        classes = {executor.gpu_class for executor in executors}
        terms = {cls: self._terms(cls, claims=claims) for cls in classes}
        deadlines = {cls: term.deadline_s for cls, term in terms.items()}
        opens = InstanceChannels(self.jobs, self.hub, deadlines)
        issuers = {
            INSTANCE: keys.public_hex(self.store.key()),
            **self.store.settings.issuers,
        }
        excuses = partial(excuse, self.context.records, issuers)
        ports = BatchSetup(
            self.context,
            opens,
            new_id("holder"),
            terms,
            excuses,
            folder,
            keep=ending.keep,
            tell=ending.tell,
            every_prompt=every_prompt,
            places=partial(place_named, configured=self.store.settings.executors),
        )
        return VerificationBatch(ports)

    def _terms(self, cls: Class, *, claims: frozenset[Claim]) -> ClassTerms:
        deadline_s = self.store.deadline_s(cls)
        calibrated = self.store.records.ranges(cls)
        prepared = calibrated.get("prepare_s")
        prepare_s = prepared.high if prepared else None
        limits = None
        tolerance = tolerance_of(self.store.settings, cls)
        if tolerance:
            ranges = {name: one.high for name, one in calibrated.items()}
            limits = required_limits(cls.value, ranges)
        accepts = bool(tolerance and tolerance.accept_unknown_draws)
        terms = ClassTerms(deadline_s, Expected(cls.value), prepare_s, limits, accepts)
        if not claims or not isinstance(cls, GPUClass):
            return terms
        timed = calibrated.get(limit_of(claims)) or calibrated.get("claims_s")
        longest_s = timed.high if timed else None
        root = self.store.settings.attestation_root
        wanted = replace(
            wanted_of(cls, claims),
            claims_s=longest_s,
            attestation_root=root.read_text() if root else None,
        )
        return replace(terms, expected=wanted)


@asynccontextmanager
async def open_session(home: Home | None = None) -> AsyncGenerator[Session]:
    """Open everything. The embedded server is started if none runs."""
    store, database = open_store(home)
    try:
        settings = store.settings
        listen = Hub(settings.host, settings.port, public_host=settings.public_host)
        async with AsyncClient() as client, listen as hub:
            programs = store.folder.parent / "programs"
            remove_old_programs(programs, time.time() - _PROGRAMS_KEPT_S)
            jobs = SolverJobs(client, programs)
            known = {
                cls: JobTrustedExecutor(executor, jobs, partial(store.deadline_s, cls))
                for cls, executor in judging_executors(settings).items()
            }
            context = Context(
                store.records,
                store.blobs,
                known.get,
                policy=settings,
                generator=load_generator(settings.generator),
            )
            yield Session(store, client, jobs, hub, context, known)
    finally:
        database.close()


def with_policy(session: Session, **numbers: int) -> Session:
    """The same session with other numbers in its policy."""
    policy = session.context.policy.model_copy(update=numbers)
    return replace(session, context=replace(session.context, policy=policy))
