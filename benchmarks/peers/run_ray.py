"""Ray on this machine: tasks in the memory of its workers."""

import logging

import ray
from common import SLOTS, report, spawn


def work(count: int) -> None:
    """Submit them and wait."""
    ray.get([noop.remote() for _ in range(count)])


if __name__ == "__main__":
    ray.init(
        num_cpus=SLOTS,
        include_dashboard=False,
        logging_level=logging.ERROR,
        log_to_driver=False,
    )
    noop = ray.remote(spawn)
    report(work)
    ray.shutdown()
