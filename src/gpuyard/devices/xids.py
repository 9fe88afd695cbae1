"""Listening for Xid errors: `python -m gpuyard.devices.xids UUID…` writes one JSON line for each that NVML tells of.

A process of its own, because NVML has to stay open for it, and one that has NVML open sees no GPU come or go; it
ends with its standard input. One thread a GPU waits for that GPU's events, so that one whose wait fails is known by
name: `{"uuid": …, "failed": "why"}`, and `"failed": null` when it can be heard again. An error is
`{"uuid": …, "xid": 79, "instance": N}`, where N is the MIG instance it is about, or none that there is.
"""

import json
import sys
import threading
from typing import Any

import pynvml as untyped

pynvml: Any = untyped  # nvidia-ml-py has no annotations, and types inferred from its code are wrong in places

# How long one wait lasts; after a failed one, how long until the next try.
_WAIT_MS = 1000
_AGAIN_S = 2.0
_speaking = threading.Lock()


def _say(**words: Any) -> None:
    with _speaking:
        sys.stdout.write(json.dumps(words) + "\n")
        sys.stdout.flush()


def _hear(uuid: str) -> None:
    """Wait for the events of one GPU until that fails; returns at once where the GPU has none to tell."""
    xid = pynvml.nvmlEventTypeXidCriticalError
    handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
    if not pynvml.nvmlDeviceGetSupportedEventTypes(handle) & xid:
        return
    events = pynvml.nvmlEventSetCreate()
    try:
        pynvml.nvmlDeviceRegisterEvents(handle, xid, events)
        _say(uuid=uuid, failed=None)
        while True:
            try:
                event = pynvml.nvmlEventSetWait_v2(events, _WAIT_MS)
            except pynvml.NVMLError_Timeout:
                continue
            if event.eventType == xid:
                _say(uuid=uuid, xid=int(event.eventData), instance=int(event.gpuInstanceId))
    finally:
        pynvml.nvmlEventSetFree(events)


def _listen(uuid: str, over: threading.Event) -> None:
    while not over.is_set():
        try:
            _hear(uuid)
            return
        except pynvml.NVMLError_NotSupported:
            return
        except pynvml.NVMLError as error:
            _say(uuid=uuid, failed=str(error))
        over.wait(_AGAIN_S)


def main() -> None:
    """Listen to the GPUs named on the command line until standard input ends."""
    over = threading.Event()
    pynvml.nvmlInitWithFlags(pynvml.NVML_INIT_FLAG_NO_GPUS)
    for uuid in sys.argv[1:]:
        threading.Thread(target=_listen, args=(uuid, over), daemon=True).start()
    sys.stdin.read()
    over.set()


if __name__ == "__main__":
    main()
