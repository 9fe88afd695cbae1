"""NVIDIA's attestation: a report that the GPU itself signs, with its certificates.

GPUs of the Hopper generation and later make it in the mode for confidential computing;
all others, and older drivers, make none.
"""

from __future__ import annotations

import base64
import ctypes
from typing import Any

NONCE_BYTES = 32
_CHAIN_BYTES = 0x1000
_ATTESTATION_CHAIN_BYTES = 0x1400
_REPORT_BYTES = 0x2000
_SECOND_REPORT_BYTES = 0x1000


class Certificates(ctypes.Structure):
    """`nvmlConfComputeGpuCertificate_t`. The chain is text (PEM), its leaf first."""

    _fields_ = [
        ("chain_size", ctypes.c_uint),
        ("attestation_chain_size", ctypes.c_uint),
        ("chain", ctypes.c_ubyte * _CHAIN_BYTES),
        ("attestation_chain", ctypes.c_ubyte * _ATTESTATION_CHAIN_BYTES),
    ]


class Report(ctypes.Structure):
    """`nvmlConfComputeGpuAttestationReport_t`. The nonce goes in, the report out."""

    _fields_ = [
        ("has_second_report", ctypes.c_uint),
        ("report_size", ctypes.c_uint),
        ("second_report_size", ctypes.c_uint),
        ("nonce", ctypes.c_ubyte * NONCE_BYTES),
        ("report", ctypes.c_ubyte * _REPORT_BYTES),
        ("second_report", ctypes.c_ubyte * _SECOND_REPORT_BYTES),
    ]


def attestation(nvml: Any, handle: Any, nonce: bytes) -> dict[str, str] | None:
    """What a GPU attests, for a nonce of 32 bytes: `{"certificates": PEM, "report":
    base64}`; None if it cannot.
    """
    certificates = Certificates()
    report = Report()
    report.nonce[:] = nonce
    asked = (
        ("nvmlDeviceGetConfComputeGpuCertificate", certificates),
        ("nvmlDeviceGetConfComputeGpuAttestationReport", report),
    )
    for function, answer in asked:
        try:
            code = getattr(nvml, function)(handle, ctypes.byref(answer))
        except AttributeError:  # an older driver
            return None
        if code:
            return None
    chain = bytes(certificates.attestation_chain)[: certificates.attestation_chain_size]
    content = bytes(report.report)[: report.report_size]
    return {
        "certificates": chain.decode("ascii", "replace"),
        "report": base64.b64encode(content).decode(),
    }
