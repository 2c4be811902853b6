"""Bytes that a connected agent sends while nothing is asked of it.

A real agent behind a relay that counts its TCP stream: it joins, collects, and is then watched with its store
at rest. Seen is what repeats by itself (the link's ping after ``ping_s`` without anything from the broker, a
PINGREQ after each keepalive without traffic) and how large a state message is. A day is the pings seen, times
86,400 s over the time watched, plus one state every ``state_idle_s``, the most that an agent sends whose
counts change all the time. TLS records are not in it.
"""

import time
from typing import Final

from edge_agent.config.agent import AgentSettings
from lichen_lab.benchmarks.result import Bench, Goal, ResultRow, Say, figure_rows
from lichen_lab.benchmarks.support.fleet import ProcessFleet, noise_recording
from lichen_lab.benchmarks.support.tasks import demo_task
from lichen_lab.simulation.processes.tcp_proxy import Proxy
from protocol.tasks.rounds import Rounds

_DAY_S: Final = 86400.0
_KB: Final = 1000.0
_PACKET_BYTES: Final = 40
"""Bytes of IPv4 and TCP headers without options, for each packet with payload."""
_PINGREQ_BYTES: Final = 2
_WINDOWS: Final = 300
_SPEED: Final = 100.0
_CONNECT_S: Final = 30.0
_SETTLE_S: Final = 4.0
_SENT: Final = "sent a day, KB"


def watch(state_every_s: float, watch_s: float, say: Say) -> tuple[list[int], list[int], int]:
    """Run an agent until its store is at rest and its last state told, then watch it.

    Returns:
        Sizes of what it sent to join and to tell its state, sizes of what it sent while watched, and the
        bytes it received meanwhile.
    """
    task = demo_task().model_copy(update={"rounds": Rounds(min_devices=1000)})
    with ProcessFleet(task) as fleet:
        fleet.broker()
        fleet.coordinator(export={"enabled": False})
        file = noise_recording(fleet.root / "quiet.npz", task, _WINDOWS)
        with Proxy(fleet.port) as meter:
            fleet.agent("quiet", file, speed=_SPEED, port=meter.port, state_every_s=state_every_s)
            fleet.until(lambda: "source_ended" in fleet.said("quiet"), _CONNECT_S, "all is collected")
            time.sleep(state_every_s + _SETTLE_S)
            before, down = meter.reads("up"), meter.bytes_taken("down")
            say(f"joining and telling its state took {sum(before)} bytes; watching it for {watch_s:g} s")
            time.sleep(watch_s)
            return before, meter.reads("up")[len(before) :], meter.bytes_taken("down") - down


def run(quick: bool, say: Say) -> list[ResultRow]:  # noqa: FBT001 - every benchmark's signature
    """Watch for 180 s, four pings; quick: 43 s, one ping."""
    started = time.perf_counter()
    defaults = AgentSettings(fleet="x", device="x")
    state_every_s, watch_s = (1.0, 43.0) if quick else (defaults.state_every_s, 180.0)
    before, seen, received = watch(state_every_s, watch_s, say)
    state, states = max(before), _DAY_S / defaults.state_idle_s
    pings, packets = sum(seen) * _DAY_S / watch_s, len(seen) * _DAY_S / watch_s
    figures = {
        _SENT: (pings + states * state) / _KB,
        "of it at rest, KB": pings / _KB,
        "sent a day with TCP/IP headers, KB": (pings + states * state + _PACKET_BYTES * (packets + states))
        / _KB,
        "bytes of a state message": float(state),
        "bytes sent while watched": float(sum(seen)),
        "of them PINGREQ": float(_PINGREQ_BYTES * seen.count(_PINGREQ_BYTES)),
        "of them pings of the link": float(sum(size for size in seen if size != _PINGREQ_BYTES)),
        "bytes received while watched": float(received),
        "bytes to join and tell the first states": float(sum(before)),
    }
    setting = f"state_idle_s {defaults.state_idle_s:g}, watched {watch_s:g} s"
    taken = time.perf_counter() - started
    return figure_rows("2 modalities, 7 classes", "idle agent", setting, figures, seconds=taken)


BENCH: Final = Bench(
    name="idle",
    run=run,
    goals=(Goal(_SENT, 250),),
)
