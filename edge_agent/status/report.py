"""What an agent says of itself in ``status.json``: what it does, and what it waits for."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from edge_agent.sources.base import Telling
from edge_agent.status.waits import waits
from edge_agent.tasks.workspace import Standing
from edge_agent.windows.workspace import NOTHING
from models.contract import Profile
from runtime.storage.disk import DISK

if TYPE_CHECKING:
    from edge_agent.agent import Agent


_ENDED: Final = "stopped with the agent"


def report(agent: "Agent", *, ended: bool = False) -> dict[str, Any]:
    """All of it, as JSON values.

    Args:
        agent: of which.
        ended: it is said for the last time: what was well has stopped, and what was not is left as it was.
    """
    work, counters = agent.workspace(), agent.link.counters
    now = Standing(Profile((), ()), 0, {}) if work is None else work.now()
    return {
        "device": agent.settings.device,
        "link": _ENDED if ended and agent.link.connected else agent.link.why,
        "certificate": agent.renewal.why,
        "task": None if work is None else work.task.name,
        "waits": [asdict(wait) for wait in waits(agent)],
        "modalities": [] if work is None else list(work.modalities),
        "reads": list(now.profile.modalities),
        "learns": list(now.profile.targets) if work is not None and work.by and now.samples else [],
        "route": list(agent.learner.routes.last),
        **(dict(NOTHING) if work is None else work.told()),
        "data_warnings": list(agent.collector.doubts),
        "disk_writes": DISK.get().wear(),
        "source_failures": agent.collector.restarts,
        "sources": {s.name: told(s) for s in agent.sources if isinstance(s, Telling)},
        "sources_ended": sorted(agent.collector.finished),
        "learning": agent.learner.why,
        "privacy": agent.learner.privacy.words or "nothing was released",
        "rounds_trained": agent.learner.trained,
        "outbox": {
            "waiting": agent.outbox.waiting,
            "accepted": agent.outbox.accepted,
            "refused": agent.outbox.refused,
            "withdrawn": agent.outbox.withdrawn,
            "last_refusal": agent.outbox.last_refusal,
            "dropped": agent.spool.dropped,
            "rotten": agent.spool.rotten,
        },
        "inference": agent.inference.off_because or (_ENDED if ended else "running"),
        "model_version": None if agent.inference.model is None else agent.inference.model.manifest.version,
        "model_personal": agent.inference.model is not None and bool(agent.inference.model.own),
        "model_refused": agent.deployment.last_refusal,
        **agent.deployment.told(),
        "trust": agent.trust.status(),
        "work_refused": agent.verifier.why,
        "predictions": agent.inference.predictions,
        "last_prediction": agent.inference.last,
        **agent.inference.told(),
        **({} if agent.publishing is None else agent.publishing.told()),
        **({} if agent.queries is None else agent.queries.told()),
        "refused_messages": agent.router.refused,
        "bytes_out": counters.bytes_out,
        "bytes_in": counters.bytes_in,
        "reconnects": counters.reconnects,
    }


def told(source: Telling) -> dict[str, Any]:
    """How a source is, in words and in counts of what went wrong."""
    counted = {name: round(float(value), 3) for name, value in source.counters.items() if value}
    return {"state": source.state, **counted}
