"""Bounds of every simulation: queues, spools, uploads, stores, tasks."""

import asyncio
import sqlite3
from collections.abc import Iterable

from coordinator.daemon import Coordinator
from coordinator.storage.write_behind import MAX_ROWS
from edge_agent.agent import Agent
from edge_agent.messaging.outbox import MAX_WANTS
from edge_agent.messaging.round_metrics import MAX_WAITING
from lichen_lab.simulation.deterministic.machine.daemons import CoordinatorNode, DeviceNode
from lichen_lab.simulation.deterministic.machine.event_loop import SimLoop
from lichen_lab.simulation.deterministic.machine.node import Node
from lichen_lab.simulation.deterministic.scenario.coordinator_state import Violation


def check(node: Node) -> None:
    """Compare a running node with its bounds.

    Raises:
        Violation: a bound is exceeded; the message names it.
    """
    if not node.is_up:
        return
    if isinstance(node, DeviceNode) and node.agent is not None:
        try:
            found = of_agent(node.agent)
        except sqlite3.ProgrammingError:  # it is ending, and its files are closed already
            return
    elif isinstance(node, CoordinatorNode) and node.app is not None:
        found = of_coordinator(node.app)
    else:
        return
    for what, (size, limit) in found.items():
        if size > limit:
            raise Violation(f"{node.name}: {what}: {size}, at most {limit}")


def of_agent(agent: Agent) -> dict[str, tuple[int, int]]:
    """An agent's resources -> (size, bound)."""
    work, settings = agent.collector.workspace, agent.settings
    found = {
        "bytes in the spool": (agent.storage.spool.bytes_used, settings.outbox.budget_bytes),
        "metrics that wait": (len(agent.metrics), MAX_WAITING),
        "files of interrupted writes": (len(list(settings.state_dir.glob(".tmp-*"))), 1),
        "answers in the outbox": (len(agent.outbox._wants), MAX_WANTS),  # noqa: SLF001 - an observer looks inside
    }
    if work is not None:
        found["bytes in the window store"] = (work.store.snapshot().bytes, settings.store.budget_bytes)
    return found


def of_coordinator(app: Coordinator) -> dict[str, tuple[int, int]]:
    """A coordinator's resources -> (size, bound)."""
    uploads = app.receiver._uploads  # noqa: SLF001 - an observer looks inside
    return {
        "announced bytes of uploads": (uploads.announced_bytes, app.settings.uploads.total_bytes),
        "rows that wait for the ledger": (len(app.storage.ledger._rows), MAX_ROWS),  # noqa: SLF001 - as above
        "work in hand": (app.driver.work.qsize(), 2),
    }


def of_loop(nodes: Iterable[Node]) -> None:
    """Count the tasks of all processes together.

    Raises:
        Violation: more than they need: they leak.
    """
    loop = asyncio.get_running_loop()
    count = len(loop.live_tasks()) if isinstance(loop, SimLoop) else len(asyncio.all_tasks())
    most = sum(node.most_tasks for node in nodes)
    if count > most:
        raise Violation(f"{count} tasks in all processes, at most {most}")
