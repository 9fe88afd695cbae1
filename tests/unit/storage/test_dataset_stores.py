"""The stores of datasets: whoever makes up names of projects fills no memory."""

from pathlib import Path

from gpuyard.config.settings import StorageSettings
from gpuyard.storage import dataset_store
from gpuyard.storage.dataset_store import DatasetStores


def test_only_those_that_were_asked_for_last_stay_open(tmp_path: Path) -> None:
    stores = DatasetStores(tmp_path, StorageSettings())
    kept = stores("kept")
    for number in range(3 * dataset_store._MOST_OPEN):
        stores(f"made-up-{number}")
        assert stores("kept") is kept
    assert len(stores._open) == dataset_store._MOST_OPEN
