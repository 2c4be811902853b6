"""Single parts of an agent, with the objects that they share with others."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from types import SimpleNamespace
from typing import Any

from edge_agent.agent import Agent
from edge_agent.config.agent import AgentSettings
from edge_agent.messaging.contact import Contact
from edge_agent.messaging.outbox import Outbox
from edge_agent.messaging.round_metrics import RoundMetrics
from edge_agent.messaging.state_reporter import StateReporter
from edge_agent.secure_aggregation.service import MaskingService
from edge_agent.storage.agent_storage import AgentStorage
from edge_agent.storage.round_ledger import RoundLedger
from edge_agent.tasks.workspace import Readiness
from edge_agent.training.learner import Learner
from edge_agent.windows.collector import Collector
from edge_agent.windows.quality.meter import ScoredWindows
from models.contract import Profile
from runtime.clock import Clock, SystemClock
from runtime.concurrency.signals import Signal
from runtime.process.daemon import Progress
from runtime.storage.spool import Spool
from runtime.waits import StatusText
from tests.support.clock import ManualClock
from tests.support.services import beside


def collector_of(
    settings: AgentSettings,
    sources: list[Any],
    clock: Clock,
    listener: Callable[[ScoredWindows], None] = lambda _: None,
) -> Collector:
    return Collector(settings, sources, clock=clock, listener=listener, changed=Signal(), progress=Progress())


def outbox_of(
    link: Any, spool: Spool, settings: AgentSettings, ledger: RoundLedger | None = None, **parts: Any
) -> Outbox:
    clock = SystemClock()
    ledger = ledger or RoundLedger(spool._path.parent / "rounds.json", clock)
    shared = {
        "learning": StatusText(clock, ""),
        "contact": Contact(clock),
        "state_wanted": Signal(),
        "changed": Signal(),
    }
    return Outbox(link, spool, ledger, settings, clock, **shared | parts)


def learner_of(
    settings: AgentSettings, work: Any, storage: AgentStorage, fetcher: Any, clock: Clock, **more: Any
) -> Learner:
    """``work``: the present workspace."""
    learning, contact = StatusText(clock, storage.ledger.first_status()), Contact(clock)
    outbox = outbox_of(None, storage.spool, settings, storage.ledger, learning=learning, contact=contact)
    return Learner(
        settings,
        SimpleNamespace(workspace=work, withheld="", spend=lambda _words: None),
        outbox,
        storage=storage,
        fetcher=fetcher,
        clock=clock,
        learning=learning,
        metrics=RoundMetrics(),
        contact=contact,
        masking=MaskingService(settings, None, clock, learning),
        **more,
    )


def reporter_of(
    settings: AgentSettings, link: Any, clock: Clock | None = None, kind: type[StateReporter] = StateReporter
) -> StateReporter:
    """The status of a device without task and model."""
    return kind(
        settings,
        link,
        tasks=SimpleNamespace(
            workspace=None, task_mismatch="", spent="", readiness=lambda: Readiness(Profile(()), 0, {})
        ),  # type: ignore[arg-type]
        models=SimpleNamespace(digest=None, trial=None, blocked=None),
        verifier=SimpleNamespace(why=""),  # type: ignore[arg-type]
        clock=clock or ManualClock(),
        withdrawn=(),
        changed=Signal(),
        wanted=Signal(),
        metrics=RoundMetrics(),
        backbones=SimpleNamespace(refusal=""),
    )


@asynccontextmanager
async def alive(agent: Agent, *names: str) -> AsyncIterator[None]:
    """Run all services of an agent, or those with these names; the agent is closed at the end."""
    with closing(agent):
        if not names:
            await agent.start()
        async with beside(*(run for name, run in agent.services().items() if not names or name in names)):
            yield
