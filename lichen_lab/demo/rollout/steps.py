"""Rollouts at the end: four watches predict, a bad version fails on one, the newest one reaches all."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from lichen_lab.demo.core.fleet import DemoFleet
from lichen_lab.demo.core.lichen_commands import ask, command_line, history
from lichen_lab.demo.core.observer import describe as describe_observer
from lichen_lab.demo.core.observer import initial_results, listen, parse
from lichen_lab.demo.core.results import ObserverResults
from lichen_lab.demo.core.side_jobs import lines
from lichen_lab.demo.rollout import devices
from lichen_lab.demo.rollout.bad_model import spoil
from lichen_lab.demo.rollout.devices import DemoPlan
from lichen_lab.demo.rollout.monitor import Recorder, last_turn, predictions_of
from lichen_lab.demo.rollout.results import (
    COMMITTED,
    COMPLETE,
    FAILED,
    PAUSED,
    ROLLED_BACK,
    TRIAL,
    DemoRelease,
    Move,
    RolloutResults,
)
from lichen_lab.demo.rollout.screen import board
from protocol.errors import Transient
from runtime.storage.files import disk_errors

_OVER: Final = frozenset({COMPLETE, FAILED, PAUSED, "aborted"})


@dataclass(frozen=True)
class DemoRolloutStatus:
    """Status of the last rollout."""

    phase: str
    why: str
    words: str

    @property
    def over(self) -> bool:
        """Whether it has ended or waits for an operator."""
        return self.phase in _OVER


def create_words(config: Path, plan: DemoPlan, which: Sequence[str]) -> tuple[str, ...]:
    """``rollout create`` and its options.

    Args:
        config: the coordinator's.
        plan: of the rollout.
        which: the version to roll out: ``--version N`` or ``--bundle FILE``.
    """
    trial = plan.trial.model_dump(exclude_defaults=True)
    options = [word for key, value in trial.items() for word in (f"--{key.replace('_', '-')}", f"{value:g}")]
    going = ("--canary", plan.canary, "--waves", plan.waves)
    return ("rollout", "create", "--config", str(config), *which, *going, *options)


def status_of(answer: dict[str, Any]) -> DemoRolloutStatus:
    """The last rollout in the output of ``rollout status --format json``."""
    rollout = answer["rollout"]
    if rollout is None:
        return DemoRolloutStatus("none", "", "no rollout has begun")
    phase, why = str(rollout["phase"]), str(rollout["why"])
    waits = "; ".join(str(wait["why"]) for wait in answer["waits"])
    return DemoRolloutStatus(phase, why, waits or f"the rollout of version {rollout['version']} is {phase}")


if TYPE_CHECKING:
    from lichen_lab.simulation.processes.process import Child

_START_S: Final = 90.0
_RELEASE_S: Final = 300.0
_SAID_S: Final = 20.0
_LOOK_S: Final = 1.0
_FIRST: Final = "what half of the rounds made"
_BAD: Final = "the newest version with its weights shuffled: passes every gate before the device"
_GOOD: Final = "the newest version, what all rounds made"


class RolloutAct:
    """See :meth:`play`."""

    def __init__(self, fleet: DemoFleet[Any], results: RolloutResults) -> None:
        self._fleet = fleet
        self._results = results
        self._names = [one.name for one in self._results.watchers]
        self._zero = time.time() - fleet.screen.seconds
        """Wall clock at the demo's second 0."""
        self.recorder = Recorder(
            fleet.view.fleet,
            self._names,
            now=lambda: fleet.screen.seconds,
            tell=lambda move: fleet.screen.say(describe(move)),
        )
        self.children: dict[str, Child] = {}
        self.words = ""
        """Status of the rollout, in words."""

    async def play(self) -> None:
        """Play all of it, and fill in the results.

        Raises:
            Transient: something did not happen in time, or a command failed.
        """
        results, screen = self._results, self._fleet.screen
        results.began = round(screen.seconds, 1)
        screen.show_board(lambda: board(results, self.recorder.moves, self.words))
        async with self._fleet.onlooking(self.recorder):
            results.moves = self.recorder.moves
            async with asyncio.TaskGroup() as both:
                made = both.create_task(self._bad_bundle())
                both.create_task(self._begin())
            bundle, version = made.result()
            results.bad = await self._release(version, _BAD, devices.PLAN, "--bundle", str(bundle))
            await self._over(results.bad, FAILED)
            newest = self._fleet.options.rounds
            results.good = await self._release(newest, _GOOD, devices.PLAN, "--version", str(newest))
            await self._over(results.good, COMPLETE)
        self.read()

    def read(self) -> None:
        """Read the watches' predictions so far."""
        for name in self._names:
            self._results.said[name] = predictions_of(self.rows(name), self._zero)

    def rows(self, name: str) -> list[dict[str, Any]]:
        """A watch's lines."""
        return lines(self._fleet.layout.predictions(name))

    async def _begin(self) -> None:
        """Start the watches, and roll out their first version."""
        fleet, results = self._fleet, self._results
        for name in self._names:
            self.children[name] = await fleet.start_observer(name)
        where = ", ".join(f"{one.name} ({one.site})" for one in results.watchers)
        fleet.screen.say(f"{len(self._names)} watches that only predict are started: {where}")

        def here() -> bool:
            known = (fleet.view.devices.get(name) for name in self._names)
            return all(one is not None and one.status == "online" for one in known)

        await fleet.wait("the watches to connect", here, _START_S)
        results.before = devices.first_version(fleet.options.rounds)
        words = ("--version", str(results.before))
        results.first = await self._release(results.before, _FIRST, devices.ALL_AT_ONCE, *words)
        await self._over(results.first, COMPLETE)

    async def _bad_bundle(self) -> tuple[Path, int]:
        """Spoil the newest version, and export it by the product's own command."""
        fleet = self._fleet
        newest = max((await history(fleet))["versions"], key=lambda row: int(row["version"]))
        folder, out = fleet.layout.root / "bad", fleet.layout.root / "bad.bundle"
        blobs = fleet.layout.state("coordinator") / "blobs"
        with disk_errors(folder):
            manifest, spoilt, version = await asyncio.to_thread(
                spoil, blobs, newest["manifest"], folder, fleet.options.seed
            )
        answer = await ask(
            *("export", "--blobs", str(spoilt), "--manifest", str(manifest)),
            *("--task", str(fleet.layout.config("task")), "--out", str(out)),
            patience_s=fleet.options.timeout_s,
        )
        fleet.screen.say(
            f"version {version} is version {newest['version']} with its weights shuffled; lichen export "
            f"finds nothing wrong: {answer['size']} bytes, graph and torch agree"
        )
        return out, version

    async def _release(self, version: int, made: str, plan: devices.DemoPlan, *which: str) -> DemoRelease:
        """``lichen rollout create``."""
        fleet = self._fleet
        words = create_words(fleet.layout.config("coordinator"), plan, which)
        shown = command_line(*(word.replace(f"{fleet.layout.root}/", "") for word in words))
        release = DemoRelease(version, made, shown, began=round(fleet.screen.seconds, 1))
        fleet.screen.say(shown)
        await ask(*words)
        return release

    async def _over(self, release: DemoRelease, wanted: str) -> None:
        """Watch a rollout to its end."""
        fleet, screen = self._fleet, self._fleet.screen

        async def over() -> bool:
            await asyncio.sleep(_LOOK_S)
            found = status_of(await self._status())
            self.words, release.phase, release.why = found.words, found.phase, found.why
            return found.over

        def said_so() -> bool:
            return release.phase != wanted or self._settled(release.version, wanted)

        try:
            await fleet.wait(f"the rollout of version {release.version} to be over", over, _RELEASE_S)
        except Transient as error:
            raise Transient(f"{error}; the rollout: {self.words or 'nothing'}") from None
        release.ended = round(screen.seconds, 1)
        await fleet.wait("the watches to say what became of it", said_so, _SAID_S)
        screen.say(f"the rollout of version {release.version} is {release.phase}: {release.why}")
        if release.phase == PAUSED:  # only one rollout can run; the checks report it
            await ask("rollout", "abort", "--config", str(fleet.layout.config("coordinator")))
            screen.say("it is aborted, so that the demo goes on")

    def _settled(self, version: int, wanted: str) -> bool:
        """Whether the devices that a rollout reached have reported their outcome."""
        reached = self._names if wanted == COMPLETE else [self._results.canary]
        moves = [self._results.last(name, version) for name in reached]
        return all(move is not None and move.phase != TRIAL for move in moves)

    async def _status(self) -> dict[str, Any]:
        config = str(self._fleet.layout.config("coordinator"))
        answer: dict[str, Any] = await ask("rollout", "status", "--config", config)
        return answer


def describe(move: Move) -> str:
    """For people."""
    does = {
        TRIAL: f"tries version {move.version}",
        COMMITTED: f"keeps version {move.version}",
        ROLLED_BACK: f"has dropped version {move.version} by itself",
    }
    found = does.get(move.phase, f"says of version {move.version}: {move.phase}")
    return f"{move.device} {found}" + (f": {move.why}" if move.why else "")


_SLACK_S: Final = 30.0


async def observe_canary(fleet: DemoFleet[Any], act: RolloutAct, version: int) -> ObserverResults:
    """Wait for it.

    Raises:
        Transient: there is no such turn in time.
    """
    name = devices.CANARY.name
    results = await initial_results(ObserverResults, fleet, name, devices.CANARY.person)
    results.version = version
    period = fleet.stage.lengths_s[name] + devices.GAP_S

    def over() -> bool:
        rows = last_turn(act.rows(name), version, period)
        results.predictions = parse(rows or ())
        return rows is not None

    what = f"one turn of {name}'s recording ({period:.0f} s of it)"
    bound_s = period / devices.SPEED + _SLACK_S
    await listen(fleet, act.children[name], results, what=what, over=over, bound_s=bound_s)
    fleet.screen.say(describe_observer(results))
    return results
