"""The devices' half of a simulation: in this process, or in several that each keep their own devices.

A device stays in one process: its state between rounds (private tensors, error carry) never leaves it. The
state goes to every process once a round, through a pipe; updates come back as frames. They are returned in
the devices' order, whichever process is first, so the bytes do not depend on the number of processes.
"""

import multiprocessing
import signal
import traceback
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Final, Protocol, cast

from lichen_lab.simulation.training.crew.groups import deliver_all, shards
from lichen_lab.simulation.training.crew.spawning import without_interrupts, without_main
from lichen_lab.simulation.training.device import TRAIN, DeviceResult, Site, VirtualDevice
from models.contract import Blobs, Tensors
from protocol.errors import Misconfigured, Transient

_STOP_S: Final = 10.0
Share = Sequence[Sequence[VirtualDevice]]
"""The shards of a process."""


class Crew(Protocol):
    """Trains devices. One round at a time: ``start``, then ``finish``."""

    def start(self, state: Blobs, round_: int, chosen: Collection[str] | None = None) -> None:
        """Let the chosen devices (None: all) train from this state."""

    def finish(self) -> list[DeviceResult]:
        """Their results, in the devices' order."""

    def private(self) -> dict[str, Tensors]:
        """Each device's private tensors."""

    def close(self) -> None:
        """Stop; nothing runs afterwards."""


class LocalWorker:
    """All devices in this process, one group after the other; they train in :meth:`finish`."""

    def __init__(self, site: Site, devices: Sequence[VirtualDevice]) -> None:
        self._site, self._devices = site, devices
        self._shards = shards(site, devices)
        self._order: tuple[Blobs, int] | None = None
        self._chosen: Collection[str] | None = None

    def start(self, state: Blobs, round_: int, chosen: Collection[str] | None = None) -> None:
        """See :class:`Crew`."""
        self._order, self._chosen = (state, round_), chosen

    def finish(self) -> list[DeviceResult]:
        """See :class:`Crew`."""
        assert self._order is not None  # noqa: S101 - Crew's order of calls
        done: dict[str, DeviceResult] = {}
        for shard in self._shards:
            takes_part = [one for one in shard if self._chosen is None or one.name in self._chosen]
            done |= {one.device: one for one in deliver_all(self._site, takes_part, *self._order)}
        return [done[device.name] for device in self._devices if device.name in done]

    def private(self) -> dict[str, Tensors]:
        """See :class:`Crew`."""
        return {device.name: device.private for device in self._devices}

    def close(self) -> None:
        """See :class:`Crew`."""


@dataclass
class _Trouble:
    """An error that a worker process reports."""

    words: str
    misconfigured: bool


@dataclass
class _Hand:
    """One worker process and the pipe to it."""

    process: BaseProcess
    pipe: Connection
    place: str
    """For example "1 of 4"."""
    names: list[str]
    waits_for: list[str] = field(default_factory=list)


class Workers:
    """Devices dealt to fresh processes with one torch thread each.

    Args:
        site: as for one process.
        devices: dealt in turn, by shards (``crew/groups.py``).
        count: processes; at most one a shard.

    Raises:
        Transient: a process ended by itself.
    """

    def __init__(self, site: Site, devices: Sequence[VirtualDevice], count: int) -> None:
        self._names = [device.name for device in devices]
        self._round = 0
        self._hands: list[_Hand] = []
        dealt = shards(site, devices)
        shares = [dealt[first::count] for first in range(min(count, len(dealt)))]
        try:
            for share in shares:
                self._hire(share, f"{len(self._hands) + 1} of {len(shares)}")
            for hand, share in zip(self._hands, shares, strict=True):  # all start up meanwhile
                self._send(hand, (site, share))
        except BaseException:
            self._end(at_once=True)
            raise

    def _hire(self, share: Share, place: str) -> None:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=serve, args=(theirs,), name=f"simulate {place}", daemon=True)
        with without_interrupts(), without_main():
            process.start()
            names = [device.name for shard in share for device in shard]
            self._hands.append(_Hand(process, ours, place, names))
        theirs.close()

    def start(self, state: Blobs, round_: int, chosen: Collection[str] | None = None) -> None:
        """See :class:`Crew`."""
        self._round = round_
        for hand in self._hands:
            hand.waits_for = [name for name in hand.names if chosen is None or name in chosen]
            if hand.waits_for:
                self._send(hand, (state, round_, frozenset(hand.waits_for)))

    def finish(self) -> list[DeviceResult]:
        """See :class:`Crew`.

        Raises:
            Transient: a process ended by itself; the message names its devices.
            Misconfigured: a device's input is wrong.
            RuntimeError: a bug of this program; the message has the worker's traceback.
        """
        done: dict[str, DeviceResult] = {}
        while busy := [hand for hand in self._hands if hand.waits_for]:
            ready = wait([hand.pipe for hand in busy])
            for hand in busy:
                if hand.pipe in ready:
                    delivery = self._receive(hand)
                    hand.waits_for.remove(delivery.device)
                    done[delivery.device] = delivery
        return [done[name] for name in self._names if name in done]

    def private(self) -> dict[str, Tensors]:
        """See :class:`Crew`."""
        kept: dict[str, Tensors] = {}
        for hand in self._hands:
            self._send(hand, None)
            kept |= self._receive(hand)
        return {name: kept[name] for name in self._names}

    def close(self) -> None:
        """See :class:`Crew`. A process that is training is ended at once."""
        self._end(at_once=any(hand.waits_for for hand in self._hands))

    def _send(self, hand: _Hand, what: object) -> None:
        try:
            hand.pipe.send(what)
        except OSError:
            raise self._gone(hand) from None

    def _receive(self, hand: _Hand) -> Any:
        try:
            result = hand.pipe.recv()
        except (EOFError, OSError):
            raise self._gone(hand) from None
        if not isinstance(result, _Trouble):
            return result
        if result.misconfigured:
            raise Misconfigured(result.words)
        raise RuntimeError(f"{self._words(hand)}:\n{result.words}")

    def _gone(self, hand: _Hand) -> Transient:
        hand.process.join(_STOP_S)
        code = hand.process.exitcode
        how = "ended" if code is None or code >= 0 else f"was ended by {_signal_name(-code)}"
        status = "" if code is None or code < 0 else f" with status {code}"
        return Transient(
            f"{self._words(hand)} {how}{status}; the usual cause of a kill is too little memory: "
            "fewer workers or smaller devices need less"
        )

    def _words(self, hand: _Hand) -> str:
        when = f"in round {self._round}" if self._round else "before round 1"
        return f"simulation, worker process {hand.place} (devices {', '.join(hand.names)}), {when}"

    def _end(self, *, at_once: bool) -> None:
        """Ask first (by a closed pipe), then terminate."""
        for hand in self._hands:
            hand.pipe.close()
            if at_once:
                hand.process.terminate()
        for hand in self._hands:
            hand.process.join(_STOP_S)
            if hand.process.is_alive():
                hand.process.kill()
                hand.process.join()
        self._hands = []


def _signal_name(number: int) -> str:
    with suppress(ValueError):
        return signal.Signals(number).name
    return f"signal {number}"


class _Closed(Exception):  # noqa: N818 - says what happened
    """The parent process is gone, or has closed the pipe."""


def serve(pipe: Connection) -> None:
    """A worker process: receives the devices, then a state a round; ends when the pipe is closed."""
    with suppress(_Closed):
        try:
            _serve(pipe)
        except Misconfigured as error:
            _give(pipe, _Trouble(str(error), misconfigured=True))
        except Exception as error:
            if isinstance(error, _Closed):
                raise
            _give(pipe, _Trouble(traceback.format_exc(), misconfigured=False))


def _serve(pipe: Connection) -> None:
    site, share = cast("tuple[Site, Share]", _take(pipe))
    devices = [device for shard in share for device in shard]
    if any(device.role == TRAIN for device in devices):
        limit_to_one_thread()
    while True:
        order = _take(pipe)
        if order is None:
            _give(pipe, {device.name: device.private for device in devices})
            continue
        state, round_, chosen = order
        for shard in share:
            takes_part = [device for device in shard if device.name in chosen]
            for result in deliver_all(site, takes_part, state, round_):
                _give(pipe, result)


def _take(pipe: Connection) -> Any:
    try:
        return pipe.recv()
    except (EOFError, OSError):
        raise _Closed from None


def _give(pipe: Connection, message: object) -> None:
    try:
        pipe.send(message)
    except OSError:
        raise _Closed from None


def limit_to_one_thread() -> None:
    """Limit torch to one thread, so that the number of processes changes no byte."""
    import torch  # noqa: PLC0415 - heavy, and not for prototype devices

    torch.set_num_threads(1)


@contextmanager
def one_thread() -> Iterator[None]:
    """The same for a stretch of a process that goes on: small networks are slower on several threads."""
    import torch  # noqa: PLC0415 - as above

    before = torch.get_num_threads()
    limit_to_one_thread()
    try:
        yield
    finally:
        torch.set_num_threads(before)
