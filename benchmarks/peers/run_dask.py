"""Dask's distributed scheduler on this machine: two workers of one thread, nothing on
disk.
"""

from common import FOLDER, SLOTS, report, spawn
from distributed import Client, LocalCluster, wait


def noop(_: int) -> int:
    """One no-op."""
    return spawn()


if __name__ == "__main__":
    with (
        LocalCluster(
            n_workers=SLOTS,
            threads_per_worker=1,
            dashboard_address=None,
            local_directory=str(FOLDER),
        ) as cluster,
        Client(cluster) as client,
    ):

        def work(count: int) -> None:
            """Submit them and wait."""
            wait(client.map(noop, range(count), pure=False))

        report(work)
