"""`cheater.py HOW MEMORY PROGRAM < order`: our solver with one thing changed, as a
dishonest executor may do it.

`smaller`: another model with fewer words. `replays`: sends the first answers that it
ever gave. `refuses`: declines at once, without a reason. `hears`: declines when it
knows the seed. `invents`: sends a hash, and other answers to it.
`leaves`: goes when it knows the seed. `forges`: declines with the receipts in the file
MEMORY. `borrows`: shows the GPU whose UUID MEMORY holds. `guesses`: answers under
another seed than it is given. `rants`: fails, in words that fit into no line. `canned`,
`dawdles`: claims what an honest GPU would, after as many seconds as MEMORY says.
"""

import hashlib
import importlib
import os
import sys
import time
from pathlib import Path
from typing import Any

how = sys.argv[1]
memory = Path(sys.argv[2])
sys.path.insert(0, sys.argv[3])
entry: Any = importlib.import_module("program.entry")
messages: Any = importlib.import_module("program.messages")
mock: Any = importlib.import_module("program.engines.mock")
stream: Any = importlib.import_module("program.hub_connection")
canonical = messages.canonical
seed = stream.HubConnection.seed


def replayed(document: Any) -> bytes:
    """What was said the first time."""
    if not memory.exists():
        memory.write_bytes(canonical(document))
    return memory.read_bytes()


def declined(channel: Any) -> int:
    """Hear the seed, and then have no time."""
    seed(channel)
    channel.send({"type": "declined", "reason": "busy", "receipts": []})
    channel.close()
    sys.exit(0)


def gone(channel: Any) -> int:
    """Hear the seed, and leave."""
    sys.exit(seed(channel) and 0)


def rant(channel: Any) -> int:
    """Say why not, at length."""
    seed(channel)
    raise stream.HubConnectionError("one\n\0other\x1b[2J")


def canned(wanted: dict[str, Any]) -> dict[str, Any]:
    """Digests that are the same for all, from no GPU at all."""
    time.sleep(float(memory.read_text()))
    digest = hashlib.sha256(wanted["nonce"].encode()).hexdigest()
    return {
        "vram": {"gigabytes": wanted["vram_gb"], "digest": digest},
        "speed": {"digest": digest},
    }


def other_pieces(kind: str, data: bytes, size: int) -> Any:
    """Pieces of something else."""
    return pieces(kind, data.replace(b"a", b"e"), size)


pieces = messages.pieces
if how == "smaller":
    mock._WORDS = mock._WORDS[:5]
elif how == "replays":
    messages.canonical = replayed
elif how == "refuses":
    entry._receipts = list
elif how == "hears":
    stream.HubConnection.seed = declined
elif how == "leaves":
    stream.HubConnection.seed = gone
elif how == "invents":
    messages.pieces = other_pieces
elif how == "forges":
    os.environ[entry.BUSY] = str(memory)
elif how == "guesses":
    stream.HubConnection.seed = lambda channel: seed(channel) ^ 1
elif how == "rants":
    stream.HubConnection.seed = rant
elif how in ("canned", "dawdles"):
    entry.probe.claims = canned
elif how == "borrows":
    os.environ["CUDA_VISIBLE_DEVICES"] = memory.read_text()
else:
    sys.exit(f"nobody cheats like {how}")
sys.exit(entry.main())
