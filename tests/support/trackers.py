"""An environment with real trackers, built once (a minute) and kept in the cache."""

from pathlib import Path

from tests.support.environments import make_python

PACKAGES = ("tensorboard", "tensorboardX", "wandb", "mlflow")


def make_trackers_python() -> Path:
    """The interpreter of the environment, which is made if it is not there."""
    return make_python("trackers", PACKAGES)
