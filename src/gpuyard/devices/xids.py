"""Listens for Xid errors: `python -m gpuyard.devices.xids UUID…` writes one JSON line
for each one that NVML reports.

It is a process of its own, because NVML must stay open for it, and a process with NVML
open does not see GPUs come and go. It ends when its standard input ends. One thread per
GPU waits for that GPU's events, so that a failed wait can be reported with the GPU's
UUID: `{"uuid": …, "failed": "why"}`, and `"failed": null` when its events can be
received again. An error is `{"uuid": …, "xid": 79, "instance": N}`, where N is the MIG
instance that it is about, or a number that no instance has.
"""

import json
import sys
import threading
from typing import Any

import pynvml as untyped

# nvidia-ml-py has no annotations, and types inferred from its code are wrong in places
pynvml: Any = untyped

# How long one wait lasts, and how long after a failed one the next try is.
_WAIT_MS = 1000
_RETRY_S = 2.0
_output_lock = threading.Lock()


def _write(**message: Any) -> None:
    with _output_lock:
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()


def _wait_for_events(uuid: str) -> None:
    """Wait for the events of one GPU until that fails; returns at once if the GPU
    reports none.
    """
    xid = pynvml.nvmlEventTypeXidCriticalError
    handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
    if not pynvml.nvmlDeviceGetSupportedEventTypes(handle) & xid:
        return
    events = pynvml.nvmlEventSetCreate()
    try:
        pynvml.nvmlDeviceRegisterEvents(handle, xid, events)
        _write(uuid=uuid, failed=None)
        while True:
            try:
                event = pynvml.nvmlEventSetWait_v2(events, _WAIT_MS)
            except pynvml.NVMLError_Timeout:
                continue
            if event.eventType == xid:
                xid_number = int(event.eventData)
                instance = int(event.gpuInstanceId)
                _write(uuid=uuid, xid=xid_number, instance=instance)
    finally:
        pynvml.nvmlEventSetFree(events)


def _listen(uuid: str, over: threading.Event) -> None:
    while not over.is_set():
        try:
            _wait_for_events(uuid)
            return
        except pynvml.NVMLError_NotSupported:
            return
        except pynvml.NVMLError as error:
            _write(uuid=uuid, failed=str(error))
        over.wait(_RETRY_S)


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
