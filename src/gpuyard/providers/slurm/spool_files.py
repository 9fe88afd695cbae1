"""Puts checkpoints and copies of folders into a spool that this host sees, too.

Jobs may write there. So every step is opened by its name in the folder before it, and
no link is followed.
"""

import os
import time
from contextlib import suppress

from gpuyard.domain.attempt_order import ResumePoint
from gpuyard.providers.attempt_folder import AttemptFolder
from gpuyard.storage.blobs import Blobs
from gpuyard.storage.untrusted import Entry, entries, folder_beneath, remove_in

_SNAPSHOTS = "snapshots"
_PRIVATE = 0o700
_KEPT_S = 86_400.0


def restore_checkpoint(
    blobs: Blobs, folder: AttemptFolder, resume: ResumePoint
) -> None:
    """Put the checkpoint into the attempt's folder; OSError."""
    steps = folder.resume.relative_to(folder.spool).parts
    with folder_beneath(folder.spool, steps, make=_PRIVATE) as inner:
        blobs.restore_in(resume.sha256, inner, resume.name, directory=resume.directory)


def link_snapshot(snapshots: Blobs, sha256: str, folder: AttemptFolder) -> None:
    """Give the attempt a link to the spool's copy of a snapshot, which is made if there
    is none; remove copies without a link that are older than a day. OSError.
    """
    spool = folder.spool
    name = f"{sha256}.tar"
    with (
        folder_beneath(spool, [_SNAPSHOTS], make=_PRIVATE) as kept,
        folder_beneath(spool, [folder.attempt_id], make=_PRIVATE) as inner,
    ):
        if not any(entry.is_file for entry in entries(kept, names=[name])):
            snapshots.restore_in(sha256, kept, name, directory=False)
        os.utime(name, dir_fd=kept, follow_symlinks=False)
        remove_in(inner, folder.work.name)
        try:
            os.link(
                name,
                folder.work.name,
                src_dir_fd=kept,
                dst_dir_fd=inner,
                follow_symlinks=False,
            )
        except OSError:  # not every file system has links between folders
            snapshots.restore_in(sha256, inner, folder.work.name, directory=False)
        for entry in entries(kept):
            if _is_unused(entry):
                with suppress(OSError):
                    os.unlink(entry.name, dir_fd=kept)


def _is_unused(entry: Entry) -> bool:
    """Whether no attempt has a link to this copy, and none needed it for a day."""
    is_alone = entry.is_file and entry.status.st_nlink == 1
    return is_alone and entry.status.st_mtime < time.time() - _KEPT_S
