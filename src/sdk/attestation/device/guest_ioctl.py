"""Reports of confidential hardware by its devices, where the kernel has no configfs-tsm (CONFIDENTIAL.md §6.2).

Linux, include/uapi/linux/sev-guest.h, x86-64; and the interface to TDX quotes from before it went upstream. A TDREPORT
is no evidence by itself: it is MACed for the processor alone.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from attestation.device.faults import fault_of
from attestation.device.tsm import MAX_BLOB_BYTES, REPORT_DATA_BYTES, TsmQuote
from attestation.errors import TEEDeviceError

SEV_GUEST: Final = Path("/dev/sev-guest")
TDX_GUESTS: Final = (Path("/dev/tdx_guest"), Path("/dev/tdx-guest"))
SNP_GET_EXT_REPORT: Final = 0xC0205302
TDX_GET_REPORT: Final = 0xC4405401
TDX_GET_QUOTE: Final = 0xC0105402
ATTEMPTS: Final = 5
PAUSE_SECONDS: Final = 0.2
QUOTE_SECONDS: Final = 30.0

_RESPONSE_BYTES: Final = 4000
_REPORT_AT, _REPORT_BYTES = 0x20, 1184
_TDREPORT_BYTES: Final = 1024
_QUOTE_HEAD_BYTES: Final = 24
_IN_FLIGHT: Final = (1 << 64) - 1
_TOO_SMALL, _BUSY = 1, 2
"""What the host says in the high half of exitinfo2."""

Ioctl = Callable[[int, int, ctypes.Array[ctypes.c_char]], int]
"""File descriptor, request and argument; the argument is changed in place, OSError where it fails."""


def _kernel(descriptor: int, request: int, argument: ctypes.Array[ctypes.c_char]) -> int:
    return int(fcntl.ioctl(descriptor, request, argument, True))


class GuestDevice:
    """The device of a guest.

    Args:
        sev_guest: Of AMD.
        tdx_guests: Of Intel, the first that is there.
        ioctl: What asks the kernel; tests bring one of their own.
        pause: Waits so many seconds.
    """

    def __init__(
        self,
        sev_guest: Path = SEV_GUEST,
        tdx_guests: tuple[Path, ...] = TDX_GUESTS,
        *,
        ioctl: Ioctl = _kernel,
        pause: Callable[[float], object] = time.sleep,
    ) -> None:
        self._sev_guest, self._tdx_guests = sev_guest, tdx_guests
        self._ioctl, self._pause = ioctl, pause

    def quote(self, report_data: bytes) -> TsmQuote:
        """Return what the hardware says of *report_data*, 64 bytes.

        Raises:
            TEEDeviceError: There is none, or it failed; the fault says how.
        """
        assert len(report_data) == REPORT_DATA_BYTES
        for path, ask in ((self._sev_guest, self._snp), *((each, self._tdx) for each in self._tdx_guests)):
            try:
                descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            except FileNotFoundError:
                continue
            except OSError as e:
                raise _fault(path, e) from e
            try:
                return ask(descriptor, report_data)
            except OSError as e:
                raise _fault(path, e) from e
            finally:
                os.close(descriptor)
        raise self._absent()

    def provider(self) -> str:
        """Return which hardware is there, as `TsmQuote.provider`; nothing is asked of it.

        Raises:
            TEEDeviceError: There is none.
        """
        for path, name in (
            (self._sev_guest, "sev_guest"),
            *((each, "tdx_guest") for each in self._tdx_guests),
        ):
            if path.exists():
                return name
        raise self._absent()

    def _absent(self) -> TEEDeviceError:
        names = [str(each) for each in (self._sev_guest, *self._tdx_guests[:1])]
        return TEEDeviceError("absent", f"no {' or '.join(names)} is there")

    def _snp(self, descriptor: int, report_data: bytes) -> TsmQuote:
        """Ask for an extended report: report, and the certificates that the host has; fewer is no fault."""
        certificates = ctypes.create_string_buffer(MAX_BLOB_BYTES)
        for _ in range(ATTEMPTS):
            request = ctypes.create_string_buffer(
                report_data
                + bytes(32)  # VMPL 0, and what must be zero
                + ctypes.addressof(certificates).to_bytes(8, "little")
                + MAX_BLOB_BYTES.to_bytes(4, "little")
                + bytes(4),
                112,
            )
            response = ctypes.create_string_buffer(_RESPONSE_BYTES)
            argument = _argument(request, response)
            try:
                self._ioctl(descriptor, SNP_GET_EXT_REPORT, argument)
            except OSError:
                host = int.from_bytes(argument.raw[28:32], "little")
                if host == _BUSY:
                    self._pause(PAUSE_SECONDS)
                    continue
                if host == _TOO_SMALL:
                    raise TEEDeviceError(
                        "malformed", f"more than {MAX_BLOB_BYTES} bytes of certificates"
                    ) from None
                raise
            status = int.from_bytes(response.raw[0:4], "little")
            size = int.from_bytes(response.raw[4:8], "little")
            if status or size != _REPORT_BYTES:
                raise TEEDeviceError("malformed", f"status {status:#x}, a report of {size} bytes")
            report = response.raw[_REPORT_AT : _REPORT_AT + _REPORT_BYTES]
            return TsmQuote("sev_guest", report, certificates.raw)
        raise TEEDeviceError("busy", "the host has no time for a report")

    def _tdx(self, descriptor: int, report_data: bytes) -> TsmQuote:
        """Ask for a TDREPORT, and the quoting enclave for a quote of it."""
        made = ctypes.create_string_buffer(report_data, REPORT_DATA_BYTES + _TDREPORT_BYTES)
        self._ioctl(descriptor, TDX_GET_REPORT, made)
        report = made.raw[REPORT_DATA_BYTES:]
        head = (1).to_bytes(8, "little") + bytes(8) + _TDREPORT_BYTES.to_bytes(4, "little") + bytes(4)
        buffer = ctypes.create_string_buffer(head + report, MAX_BLOB_BYTES)
        argument = ctypes.create_string_buffer(
            ctypes.addressof(buffer).to_bytes(8, "little") + MAX_BLOB_BYTES.to_bytes(8, "little"), 16
        )
        self._ioctl(descriptor, TDX_GET_QUOTE, argument)
        waited = 0.0
        while (status := int.from_bytes(buffer.raw[8:16], "little")) == _IN_FLIGHT:
            if waited >= QUOTE_SECONDS:
                raise TEEDeviceError("busy", "the quoting service does not answer")
            self._pause(PAUSE_SECONDS)
            waited += PAUSE_SECONDS
        size = int.from_bytes(buffer.raw[20:24], "little")
        if status:
            raise TEEDeviceError("no-provider", f"the quoting service answered {status:#x}")
        if not 0 < size <= MAX_BLOB_BYTES - _QUOTE_HEAD_BYTES:
            raise TEEDeviceError("malformed", f"a quote of {size} bytes")
        return TsmQuote("tdx_guest", buffer.raw[_QUOTE_HEAD_BYTES : _QUOTE_HEAD_BYTES + size], b"")


def _argument(
    request: ctypes.Array[ctypes.c_char], response: ctypes.Array[ctypes.c_char]
) -> ctypes.Array[ctypes.c_char]:
    """Return struct snp_guest_request_ioctl: version 1, two addresses, exitinfo2."""
    addresses = ctypes.addressof(request).to_bytes(8, "little") + ctypes.addressof(response).to_bytes(
        8, "little"
    )
    return ctypes.create_string_buffer((1).to_bytes(8, "little") + addresses + bytes(8), 32)


def _fault(path: Path, error: OSError) -> TEEDeviceError:
    return TEEDeviceError(fault_of(error), f"{path}: {error.strerror or error}")


def first_that_answers(*ways: Callable[[bytes], TsmQuote]) -> Callable[[bytes], TsmQuote]:
    """Return what asks each of *ways* in turn, the next where one is not there on this machine.

    Any other fault is told as it is: a device that is denied or busy is there.
    """

    def ask(report_data: bytes) -> TsmQuote:
        absent: TEEDeviceError | None = None
        for way in ways:
            try:
                return way(report_data)
            except TEEDeviceError as e:
                if e.fault not in ("absent", "no-provider"):
                    raise
                absent = absent or e
        assert absent is not None
        raise absent

    return ask
