"""The datasets of a bucket: what nobody finished to upload does not stay there."""

import hashlib
import io
import time
from pathlib import Path

from gpuyard.config.settings import StorageSettings
from gpuyard.domain.datasets import Manifest
from gpuyard.storage.dataset_store import (
    DatasetStores,
    folder_of,
    missing,
    put_manifest,
    remove_abandoned,
)
from tests.support.s3 import Bucket

DAY_S = 86_400.0


def test_only_what_is_old_and_of_no_version_is_removed(bucket: Bucket, tmp_path: Path):
    stores = DatasetStores(tmp_path, StorageSettings(url=bucket.url))
    assert stores.in_folders() == {}
    contents = [b"kept", b"abandoned"]
    kept, abandoned = [hashlib.sha256(content).hexdigest() for content in contents]
    for content in contents:
        stores("project").put(io.BytesIO(content))
    manifest = Manifest([("a", len(b"kept"), False)], [(kept, len(b"kept"))])
    version = put_manifest(stores("project"), manifest)
    found = stores.in_folders()
    assert list(found) == [folder_of("project")]
    blobs = found[folder_of("project")]
    assert blobs.older_than(time.time() - DAY_S) == []
    old = blobs.older_than(time.time() + DAY_S)
    assert sorted(old) == sorted([kept, abandoned, version])
    assert remove_abandoned(blobs, old, [version]) == 1
    assert missing(stores("project"), [kept, abandoned, version]) == [abandoned]
