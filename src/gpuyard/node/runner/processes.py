"""Processes of this machine, as /proc shows them, and signals for them."""

import glob
import os
import re
import signal
from contextlib import suppress
from pathlib import Path
from typing import Dict, List


def signal_number(name: str) -> int:
    return int(getattr(signal, name if name.startswith("SIG") else "SIG" + name))


def outlives(pid: int, number: int) -> bool:
    """True if the process catches, blocks or ignores the signal."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    masks = re.findall(r"Sig(?:Blk|Ign|Cgt):\s*([0-9a-f]+)", status)
    return any(int(mask, 16) >> (number - 1) & 1 for mask in masks)


def descendants(root: int) -> List[int]:
    """The pids of every process below `root`, parents first."""
    children: Dict[int, List[int]] = {}
    for path in glob.glob("/proc/[0-9]*/stat"):
        with suppress(OSError, UnicodeDecodeError):
            text = Path(path).read_text()
            parent = int(text.rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(text.split()[0]))
    found = [root]
    for pid in found:  # walks over what it appends, too
        found.extend(children.get(pid, []))
    return found[1:]


def reap_children(but: int) -> bool:
    """Reap ended children but one: the job's orphans, whose codes do not matter. True
    when there were any children.
    """
    try:
        text = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
    except OSError:
        return False
    children = [int(word) for word in text.split()]
    for pid in children:
        if pid != but:
            with suppress(OSError):
                os.waitpid(pid, os.WNOHANG)
    return bool(children)
