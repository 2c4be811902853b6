"""Whether a time service keeps this machine's clock right, as the kernel knows it (adjtimex(2))."""

from pathlib import Path
from typing import Final

_TIMEX_BYTES: Final = 256
"""More than struct timex of any Linux; zeroed, so that ``modes`` = 0 only reads."""
_STATUS_OFFSET: Final = 40
"""Of ``status`` in struct timex, where long has 64 bits: after modes, offset, freq, maxerror, esterror."""
_STA_UNSYNC: Final = 0x40
_TIMESYNC: Final = Path("/run/systemd/timesync/synchronized")
"""systemd-timesyncd makes it at the first synchronisation since boot."""


def kernel_synchronised() -> bool | None:
    """True: synchronised now, or once since boot by systemd-timesyncd. None: unknown."""
    import ctypes  # noqa: PLC0415 - 1 MB that few callers need

    if _TIMESYNC.exists():
        return True
    if ctypes.sizeof(ctypes.c_long) != 8:  # noqa: PLR2004 - another layout of struct timex
        return None
    buffer = (ctypes.c_char * _TIMEX_BYTES)()
    try:
        state = ctypes.CDLL(None, use_errno=True).adjtimex(buffer)
    except (OSError, AttributeError):
        return None
    if state < 0:
        return None
    status = int.from_bytes(buffer.raw[_STATUS_OFFSET : _STATUS_OFFSET + 4], "little")
    return not status & _STA_UNSYNC
