"""The simulated machines: one with the coordinator, the others with an agent, all observed."""

import errno
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from contextvars import Context
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Final

from coordinator.app import link_of, open_coordinator
from coordinator.config.coordinator import CoordinatorSettings
from coordinator.daemon import Coordinator
from coordinator.messaging.receipts import Answer, AnswerQueue
from coordinator.wires import Wires
from edge_agent.agent import Agent
from edge_agent.app import live
from edge_agent.config.agent import AgentSettings
from edge_agent.opening import open_agent
from edge_agent.storage.agent_storage import open_storage
from lichen_lab.simulation.deterministic.machine.node import Node
from lichen_lab.simulation.deterministic.scenario.coordinator_state import OneCoordinator
from lichen_lab.simulation.deterministic.scenario.scenario import Scenario
from lichen_lab.simulation.deterministic.scenario.toy_method import ToyJobs, ToySource, ToyTrainer
from lichen_lab.simulation.deterministic.scenario.toy_models import ToyInference, bundle
from protocol.base import Wire
from protocol.errors import Refused
from protocol.messages import Receipt, State, Want, decode
from protocol.topics import Kind, parse
from runtime.concurrency.signals import Signal
from runtime.mqtt.inbox import Message
from runtime.storage.spool import Spool

FLEET: Final = "world"
_CHANNELS: Final = {"acc": 2, "temp": 1}


class WatchedSpool(Spool):
    """The agent's spool, with an observer of the frames that enter and leave."""

    def __init__(self, device: "DeviceNode", *where: Any, **options: Any) -> None:
        super().__init__(*where, **options)
        self._device = device

    def put(self, **update: Any) -> None:
        """See the base class."""
        device, truth = self._device, self._device.world.truth
        device.aside(
            lambda: truth.spooled(device.name, update["round_"], update["digest"], update["payload"])
        )
        super().put(**update)

    def clear(self, digest: str) -> bool:
        """See the base class."""
        self._device.aside(lambda: self._device.world.truth.cleared(self._device.name, digest))
        return super().clear(digest)


class WatchedLink:
    """The agent's outbox, with an observer of the receipts that arrive."""

    def __init__(
        self, device: "DeviceNode", make_link: Callable[..., Any], *where: Any, **options: Any
    ) -> None:
        self._device = device
        self._link = make_link(*where, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._link, name)

    async def publish(self, topic: str, payload: bytes, **how: Any) -> None:
        """Publish, after the observer has seen a state."""
        truth = self._device.world.truth.rollouts
        if truth is not None and payload and parse(topic).kind is Kind.STATE:
            state = decode(payload, State)
            self._device.aside(lambda: truth.reports(self._device.name, state))
        await self._link.publish(topic, payload, **how)

    async def messages(self) -> AsyncIterator[Message]:
        """Take a message that arrives."""
        async for message in self._link.messages():
            with suppress(Refused):  # damaged on its way
                if parse(message.topic).kind is Kind.RECEIPT:
                    answer = decode(message.payload, Receipt, Want)
                    if isinstance(answer, Receipt):
                        self._device.world.truth.arrived(self._device.name, answer)
            yield message


class DeviceNode(Node):
    """A machine with the agent."""

    agent: Agent | None = None

    async def run(self) -> int:
        """See the base class."""
        scenario, root = self.world.scenario, self._root
        lacking = self.name in scenario.lacking
        channels = {k: v for k, v in _CHANNELS.items() if not (lacking and k == "temp")}
        source = ToySource(
            channels, self.clock, self.rng("sensor"), scenario.window_every_s, scenario.sensor_fails
        )
        settings = agent_settings(scenario, self.name, root)
        self.agent = open_agent(
            settings,
            [source],
            self.clock,
            storage=open_storage(settings, self.clock, partial(WatchedSpool, self)),
            make_link=partial(WatchedLink, self, self.world.link_maker(self)),
            worker=ToyTrainer(self.clock, scenario.train_s, self.rng("worker"), scenario.work_fails),
            rng=self.rng("jitter"),
            inference=self._inference(settings),
        )
        return await live(self.agent)

    def _inference(self, settings: AgentSettings) -> ToyInference | None:
        """Toy models, in a world with rollouts."""
        if self.world.truth.rollouts is None:
            return None
        return ToyInference(
            settings.infer,
            self.clock,
            seed=self.world.scenario.seed,
            rng=self.rng("models"),
            on_swap=self._on_swap,
        )

    def _on_swap(self, digest: str) -> None:
        """A model becomes active."""
        self.world.say(f"{self.name} runs {digest[:8]}")
        self.aside(lambda: self.world.model_runs(self.name, digest))

    @property
    def settled(self) -> bool:
        """Whether it runs what all devices should run, or has tried it and does not keep it."""
        truth, agent = self.world.truth.rollouts, self.agent
        if truth is None or agent is None:
            return True
        report, model = agent.deployment.report(), agent.inference.model
        wanted = self.world.stable_digests()
        if not wanted or (model is not None and model.digest in wanted):
            return report is None or report.phase != "trial"
        return report is not None and report.bundle in wanted and report.phase in {"rolled_back", "refused"}

    def may_rot(self, path: Path) -> bool:
        """The agent's JSON files, blobs and private tensors; databases while they are closed."""
        if path.suffix == ".sqlite3":
            return not self.is_up
        return path.suffix in {".json", ".npz"} or "blobs" in path.parts

    @property
    def waiting(self) -> int:
        """Updates without receipt."""
        return (
            0
            if self.agent is None or not self.is_up
            else len(Context().run(self.agent.storage.spool.pending))
        )


class WatchedSignal(Signal):
    """A signal with an observer that is called at each setting, before the waiter wakes."""

    def __init__(self, on_set: Callable[[], None]) -> None:
        super().__init__()
        self._on_set = on_set

    def set(self) -> None:
        """See the base class."""
        self._on_set()
        super().set()


class WatchedAnswers(AnswerQueue):
    """The queue of answers with an observer that gets each one before it can be sent."""

    def __init__(self, on_answer: Callable[[str, Wire], None]) -> None:
        super().__init__()
        self._on_answer = on_answer

    def put_nowait(self, item: Answer) -> None:
        """See the base class."""
        device, _, message = item
        self._on_answer(device, message)
        super().put_nowait(item)


class CoordinatorNode(Node):
    """The machine with the coordinator."""

    app: Coordinator | None = None

    async def run(self) -> int:
        """See the base class."""
        scenario, task = self.world.scenario, self.world.task
        settings, self.app = coordinator_settings(scenario, self._root), None
        async with open_coordinator(
            settings,
            task,
            self.world.truth.server,
            jobs=ToyJobs(
                task,
                scenario.head,
                self.clock,
                self.rng("jobs"),
                scenario.work_fails,
                bundle if scenario.rollouts else None,
            ),
            clock=self.clock,
            link=link_of(settings, self.world.link_maker(self)),
            rng=self.rng("run id"),
            wires=Wires(changes=WatchedSignal(self.on_change), answers=WatchedAnswers(self.on_answer)),
        ) as app:
            self.app = app
            await app.driver.open()
            self.aside(lambda: self.world.truth.changed(app, self._outside(app), reopened=True))
            return await app.serve()

    def on_answer(self, device: str, message: Wire) -> None:
        """A message to a device was queued."""
        app = self.app
        if app is None or not isinstance(message, Receipt):
            return
        self.world.say(f"tells {device}: {message.status} round {message.round} {message.digest[:8]}")
        self.aside(lambda: self.world.truth.told(self._outside(app), device, message))

    def _outside(self, app: Coordinator) -> OneCoordinator:
        return OneCoordinator(app, self.disk.is_durable)

    def on_change(self) -> None:
        """The round machine's state may have changed."""
        app = self.app
        if app is None:
            return
        state = app.driver.state
        self.world.say(f"round {state.round}.{state.attempt} {state.phase.value} {tuple(state.delivered)}")
        self.aside(lambda: self.world.truth.changed(app, self._outside(app)))

    def may_rot(self, path: Path) -> bool:
        """Frames of updates; the database while it is closed."""
        if path.suffix == ".sqlite3":
            return not self.is_up
        return "updates" in path.parts


def agent_settings(scenario: Scenario, name: str, root: Path) -> AgentSettings:
    """Settings as in the field, with smaller sizes and shorter waits."""
    known = _settings_of(scenario, name)
    return known.model_copy(update={"state_dir": root, "cache_dir": root / "cache"})


@lru_cache(8)
def _settings_of(scenario: Scenario, name: str) -> AgentSettings:
    return AgentSettings.model_validate(
        {
            "fleet": FLEET,
            "device": name,
            "source": ({"kind": "toy"},),
            "mqtt": mqtt(scenario),
            "windows": {"lateness_s": 10.0},
            "store": {"commit_every_s": 4.0},
            "outbox": {"resend_s": scenario.resend_s},
            "learn": {"module": "lichen_lab.simulation.deterministic.scenario.toy_method", "timeout_s": 60.0},
            "infer": {"enabled": scenario.rollouts},
            "secure_aggregation": {"without_identities": True},
            "privacy": _floors(scenario).get(name, {}),
            "deploy": {"max_starts": 100},
            "fetch_timeout_s": 60.0,
            "state_every_s": 5.0,
            # It reads the real machine: two runs of one seed would differ.
            "telemetry": {"every_s": 0},
        }
    )


def _floors(scenario: Scenario) -> dict[str, dict[str, Any]]:
    """``[privacy]`` by device."""
    found = () if scenario.protection is None else scenario.protection.floors
    return {name: floors.model_dump() for name, floors in found}


def coordinator_settings(scenario: Scenario, root: Path) -> CoordinatorSettings:
    """Settings as in the field, with shorter waits."""
    return CoordinatorSettings.model_validate(
        {
            "fleet": FLEET,
            "state_dir": root,
            "task": root / "task.toml",
            "mqtt": mqtt(scenario),
            "evaluation": {"data": root / "windows.npz" if scenario.evaluate else None},
            "export": {
                "enabled": scenario.export or scenario.rollouts,
                "every_rounds": int(scenario.routed or scenario.rollouts),
            },
            "rollout": _STAGED if scenario.rollouts else {},
            "quarantine": {"first_s": 20.0, "longest_s": 160.0},
            "offer_every_s": scenario.offer_every_s,
            "spread_s": scenario.spread_s,
            "away_grace_s": scenario.away_grace_s,
        }
    )


def mqtt(scenario: Scenario) -> dict[str, Any]:
    """Settings of both daemons."""
    return {"chunk_bytes": scenario.chunk_bytes, "backoff_min_s": 0.2, "backoff_max_s": 5.0}


_STAGED: Final = {
    "mode": "staged",
    "canary": "share:0.3",
    "waves": (1.0,),
    "soak_s": 3.0,
    "deadline_s": 1e6,
    "gates": {"max_failed_share": 0.0},
    "trial": {"windows": 2, "deadline_s": 120.0, "min_labelled": 1000},
}
"""``[rollout]``: one canary, then all; a device that fails ends it, and no person is needed."""
ERRNO: Final = {"full disk": errno.ENOSPC, "read-only disk": errno.EROFS}
