"""Tells whether a path is on a network file system, where SQLite's locks and shared
memory are not reliable.
"""

import os
import re
from pathlib import Path

_NETWORK = frozenset(
    {
        "nfs",
        "nfs4",
        "cifs",
        "smb3",
        "smbfs",
        "9p",
        "afs",
        "ceph",
        "lustre",
        "gpfs",
        "beegfs",
        "glusterfs",
    }
    | {
        f"fuse.{name}"
        for name in (
            "sshfs",
            "glusterfs",
            "ceph",
            "s3fs",
            "rclone",
            "gcsfuse",
            "juicefs",
            "beegfs",
        )
    }
)


def network_filesystem(path: Path, mountinfo: str | None = None) -> str | None:
    """The type of the network file system that holds `path`, or None.

    `mountinfo` is /proc/self/mountinfo's text.
    """
    if mountinfo is None:
        try:
            mountinfo = os.fsdecode(Path("/proc/self/mountinfo").read_bytes())
        except OSError:
            return None
    target = path.absolute().resolve()
    best = -1
    kind = ""
    for line in mountinfo.splitlines():
        before, separator, after = line.partition(" - ")
        fields = before.split()
        if not separator or len(fields) < 5:
            continue
        # The kernel writes spaces and backslashes in a path as \040 and the like.
        text = re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), fields[4])
        mount = Path(text)
        holds_target = mount == target or mount in target.parents
        if holds_target and len(mount.parts) >= best:
            best = len(mount.parts)
            kind = after.split()[0]
    return kind if kind in _NETWORK else None
