"""A serial port by termios, in raw mode at a given rate; Linux needs no other library for it.

Terminal functions are disabled: no echo, no line editing, no signals, no translation.
"""

import errno
import fcntl
import os
import termios
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from protocol.errors import Misconfigured

Parity = Literal["none", "even", "odd"]
Flow = Literal["none", "hardware", "software"]
BAUDS: Final[dict[int, int]] = {
    int(name[1:]): getattr(termios, name)
    for name in dir(termios)
    if name[0] == "B" and name[1:].isdigit() and name != "B0"
}
"""Rates that this machine's termios can set -> their constant."""
_SIZES: Final = {7: termios.CS7, 8: termios.CS8}


@dataclass(frozen=True)
class SerialLine:
    """Parameters of the line."""

    baud: int = 9600
    data_bits: int = 8
    parity: Parity = "none"
    stop_bits: int = 1
    flow: Flow = "none"

    @property
    def byte_s(self) -> float:
        """Seconds that one byte takes on the wire: start bit, data, parity, stop."""
        return (1 + self.data_bits + (self.parity != "none") + self.stop_bits) / self.baud


def require_baud(baud: int) -> None:
    """Check that the rate can be set.

    Raises:
        Misconfigured: it cannot; names the nearest rates.
    """
    if baud not in BAUDS:
        near = sorted(sorted(BAUDS), key=lambda rate: abs(rate - baud))[:2]
        raise Misconfigured(f"baud: {baud} cannot be set; the nearest are {', '.join(map(str, near))}")


def open_port(path: Path, line: SerialLine) -> int:
    """Open the port exclusively, set it up and discard earlier input; returns the descriptor.

    Raises:
        OSError: it does not exist, this user may not open it, it is in use, or it is not a serial port.
    """
    fd = os.open(path, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.ioctl(fd, termios.TIOCEXCL)  # a second reader would take half of the bytes
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # TIOCEXCL does not stop root
        _set_up(fd, line)
        termios.tcflush(fd, termios.TCIOFLUSH)
    except termios.error as error:
        os.close(fd)
        raise OSError(f"{path}: {error.args[-1]}; is it a serial port?") from None
    except BlockingIOError:
        os.close(fd)
        raise OSError(errno.EBUSY, "another process reads it", str(path)) from None
    except OSError as error:
        os.close(fd)
        raise OSError(error.errno, f"{error.strerror}; is it a serial port?", str(path)) from None
    return fd


def _set_up(fd: int, line: SerialLine) -> None:
    attributes: list[Any] = termios.tcgetattr(fd)
    control = termios.CREAD | termios.CLOCAL | _SIZES[line.data_bits]
    control |= {"none": 0, "even": termios.PARENB, "odd": termios.PARENB | termios.PARODD}[line.parity]
    control |= termios.CSTOPB if line.stop_bits == 2 else 0  # noqa: PLR2004 - the other is 1
    control |= termios.CRTSCTS if line.flow == "hardware" else 0
    given = termios.INPCK if line.parity != "none" else 0
    given |= termios.IXON | termios.IXOFF if line.flow == "software" else 0
    speed, keys = BAUDS[line.baud], attributes[6]
    keys[termios.VMIN], keys[termios.VTIME] = 0, 0
    termios.tcsetattr(fd, termios.TCSANOW, [given, 0, control, 0, speed, speed, keys])
