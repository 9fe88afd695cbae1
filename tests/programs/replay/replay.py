"""Writes a log again as its program did: bars with their \\r to stderr, lines to
stdout, in small parts with pauses.
"""

import re
import sys
import time
from pathlib import Path

log = Path(sys.argv[1]).read_bytes()
for part in re.findall(rb"[^\r\n]*[\r\n]|[^\r\n]+$", log):
    stream = (
        sys.stderr
        if part.endswith(b"\r") or b"\xe2\x96\x88" in part or b"\xe2\x94\x81" in part
        else sys.stdout
    )
    stream.buffer.write(part)
    stream.flush()
    time.sleep(0.005)
