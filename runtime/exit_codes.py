"""Exit codes of every command and daemon; the numbers from 64 on are those of sysexits.h."""

from typing import Final

from protocol.errors import LichenError, Misconfigured, Refused, Transient

OK: Final = 0
"""Done; for a daemon: stopped in order."""
USAGE: Final = 2
"""The command line is wrong."""
DATAERR: Final = 65
"""The input data is wrong."""
UNAVAILABLE: Final = 69
"""Something required is missing (a broker, an extra)."""
SOFTWARE: Final = 70
"""An internal error; systemd restarts the daemon."""
CANTCREAT: Final = 73
"""An output file cannot be created."""
IOERR: Final = 74
"""Reading or writing failed."""
TEMPFAIL: Final = 75
"""It may work later."""
NOPERM: Final = 77
"""Not permitted."""
CONFIG: Final = 78
"""The configuration is wrong; systemd does not restart the daemon (RestartPreventExitStatus=78)."""


def of(error: LichenError) -> int:
    """The exit code of a command that ends with this error."""
    codes = {Misconfigured: CONFIG, Refused: DATAERR, Transient: TEMPFAIL}
    return next((code for kind, code in codes.items() if isinstance(error, kind)), SOFTWARE)
