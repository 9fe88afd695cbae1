"""HyperQueue with its server and one worker of two cores; its Python package offers no
journal.
"""

from common import FOLDER, PROGRAM, SLOTS, report
from hyperqueue import Job, LocalCluster
from hyperqueue.cluster import WorkerConfig

if __name__ == "__main__":
    with LocalCluster(
        server_dir=str(FOLDER), worker_config=WorkerConfig(cores=SLOTS)
    ) as cluster:
        client = cluster.client()

        def work(count: int) -> None:
            """One job of so many tasks."""
            job = Job()
            for _ in range(count):
                job.program([PROGRAM], stdout=None, stderr=None)
            client.wait_for_jobs([client.submit(job)])

        report(work)
