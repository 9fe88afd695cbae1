"""What verification knows, in its database: a module for each noun, and `Records`, which is all of them."""

from gpuyard.verification.records.batches import BatchRecords
from gpuyard.verification.records.events import EventRecords
from gpuyard.verification.records.eviction import EvictionRecords
from gpuyard.verification.records.executors import ExecutorRecords
from gpuyard.verification.records.leases import LeaseRecords
from gpuyard.verification.records.samples import SampleRecords
from gpuyard.verification.records.series import SeriesRecords
from gpuyard.verification.records.workloads import WorkloadRecords


class Records(
    SeriesRecords, WorkloadRecords, SampleRecords, BatchRecords, ExecutorRecords, EventRecords, LeaseRecords,
    EvictionRecords,
):  # fmt: skip
    """All records of one database. Safe for any number of threads and processes."""
