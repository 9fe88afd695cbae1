"""The records in the database: a module for each noun, and `Records`, which is all."""

from gpuyard.verification.records.batches import BatchRecords
from gpuyard.verification.records.events import EventRecords
from gpuyard.verification.records.executors import ExecutorRecords
from gpuyard.verification.records.leases import LeaseRecords
from gpuyard.verification.records.samples import SampleRecords
from gpuyard.verification.records.series import SeriesRecords
from gpuyard.verification.records.trusted_runtimes import TrustedRuntimeRecords
from gpuyard.verification.records.uploads import UploadRecords
from gpuyard.verification.records.workloads import WorkloadRecords


class Records(
    SeriesRecords,
    WorkloadRecords,
    SampleRecords,
    BatchRecords,
    ExecutorRecords,
    EventRecords,
    LeaseRecords,
    TrustedRuntimeRecords,
    UploadRecords,
):
    """All records of one database, safe for any number of threads and processes."""
