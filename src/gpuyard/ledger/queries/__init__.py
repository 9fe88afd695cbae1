"""Reading the ledger: rows as plain dicts, lists with a cursor."""

from gpuyard.ledger.queries.arrays import ArrayQueries
from gpuyard.ledger.queries.artifacts import ArtifactQueries
from gpuyard.ledger.queries.attempts import AttemptQueries
from gpuyard.ledger.queries.base import Row
from gpuyard.ledger.queries.batches import BatchQueries
from gpuyard.ledger.queries.checkpoints import CheckpointQueries
from gpuyard.ledger.queries.cost_use import CostUseQueries
from gpuyard.ledger.queries.costs import CostQueries
from gpuyard.ledger.queries.datasets import DatasetQueries
from gpuyard.ledger.queries.fleet import FleetQueries
from gpuyard.ledger.queries.job_filter import JobFilter
from gpuyard.ledger.queries.jobs import JobQueries, StoredJob
from gpuyard.ledger.queries.journal import JournalQueries
from gpuyard.ledger.queries.metrics import MetricQueries
from gpuyard.ledger.queries.notices import NoticeQueries
from gpuyard.ledger.queries.program_runs import ProgramRunQueries
from gpuyard.ledger.queries.projects import Belonging, ProjectQueries
from gpuyard.ledger.queries.results import ResultQueries
from gpuyard.ledger.queries.schedules import ScheduleQueries
from gpuyard.ledger.queries.users import UserQueries

__all__ = ["Belonging", "JobFilter", "Queries", "Row", "StoredJob"]


class Queries(
    JobQueries,
    ArrayQueries,
    AttemptQueries,
    CostQueries,
    CostUseQueries,
    CheckpointQueries,
    ArtifactQueries,
    MetricQueries,
    ProgramRunQueries,
    FleetQueries,
    BatchQueries,
    ScheduleQueries,
    UserQueries,
    ProjectQueries,
    DatasetQueries,
    NoticeQueries,
    ResultQueries,
    JournalQueries,
):
    """All reads of one ledger; they never wait for its writer.

    Each is a transaction of its own; LedgerError when the ledger cannot be read.
    """
