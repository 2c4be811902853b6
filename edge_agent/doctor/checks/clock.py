"""The clock: windows are cut by it, and certificates are checked against it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from edge_agent.config.agent import AgentSettings
from edge_agent.doctor.findings import Finding, fail, ok, warn
from edge_agent.identity.files import folder_of
from runtime.clock import SystemClock
from runtime.mqtt.certificate_dates import known_since
from runtime.mqtt.tls import utc

FLOOR: Final = 1_767_225_600.0
"""2026-01-01: this program is younger."""
_SET: Final = (
    "timedatectl set-ntp true (apt-get install systemd-timesyncd), or give it a time server it reaches"
)


@dataclass(frozen=True)
class ClockTime:
    """Attributes.

    wall: Unix seconds. since: a time that has certainly passed, from certificates on this device; 0: unknown.
    synchronised: whether a time service keeps the kernel's clock right; None: unknown. battery: whether there
    is a clock that runs while the machine is off.
    """

    wall: float
    since: float
    synchronised: bool | None
    battery: bool


def probe(settings: AgentSettings | None) -> ClockTime:
    """The clock of this machine."""
    cert = None
    if settings is not None:
        tls = settings.mqtt.tls
        cert = folder_of(settings.device_dir).pair if tls is None or tls.cert_file is None else tls.cert_file
    clock = SystemClock()
    battery = any(Path("/sys/class/rtc").glob("rtc*"))
    return ClockTime(clock.wall(), max(FLOOR, known_since(cert, [])), clock.synchronised(), battery)


def judge(time: ClockTime) -> list[Finding]:
    """Whether it is right, what keeps it right, and where it stands after a power cut."""
    now = utc(time.wall)
    if time.wall < time.since:
        return [
            fail(
                "clock.right",
                f"the clock stands at {now}, and it is later than {utc(time.since)} for certain",
                f"set it: {_SET}. Until then windows get times of the past, and no certificate's dates count",
            )
        ]
    found = [ok("clock.right", f"{now}, which may be right")]
    battery = (
        ""
        if time.battery
        else "; no battery clock: after a power cut it is behind until the network is there"
    )
    if time.synchronised is None:
        found.append(warn("clock.kept", f"whether a time service keeps it cannot be told{battery}", _SET))
    elif time.synchronised:
        found.append(ok("clock.kept", f"a time service keeps it{battery}"))
    else:
        found.append(warn("clock.kept", f"no time service keeps it{battery}", _SET))
    return found
