"""The leader and the processes that accept updates, as ``lichen coordinator status`` shows them."""

from collections.abc import Mapping
from typing import Any

from coordinator.lease.heartbeat import LIFE_S, ClusterView
from runtime.text import first_few
from runtime.waits import Wait, span


def cluster_json(view: ClusterView) -> dict[str, Any]:
    """``leader`` and ``ingest``; null and empty where ``serve`` runs alone. Times by the database's clock."""
    lease = view.leader
    leader = {
        "holder": lease.holder,
        "epoch": lease.epoch,
        "until": lease.until,
        "left_s": round(lease.until - view.now, 1),
        "leads": view.led,
    }
    ingest = [
        {"process": name, "running": until > view.now, "heard_s": _heard_s(view, until)}
        for name, until in sorted(view.ingest.items())
    ]
    return {"leader": leader if view.several else None, "ingest": ingest}


def _heard_s(view: ClusterView, until: float) -> float:
    """Seconds since the process wrote that it runs."""
    return max(0.0, round(view.now - until + LIFE_S, 1))


def cluster_lines(found: Mapping[str, Any]) -> list[str]:
    """The same for people: a line for the leader, and one for each process that accepts updates."""
    lines = []
    if (leader := found["leader"]) is not None:
        told = f"{leader['holder']}, epoch {leader['epoch']}, for {span(leader['left_s'])} unless it renews"
        lines.append(f"leader: {told if leader['leads'] else 'none'}")
    for one in found["ingest"]:
        state = "running" if one["running"] else "silent: it hangs or was killed"
        lines.append(f"ingest: {one['process']}, heard {span(one['heard_s'])} ago, {state}")
    return lines


def cluster_waits(view: ClusterView) -> list[Wait]:
    """Waits for a leader, and for a process that accepts updates."""
    if not view.several:
        return []
    waits = []
    if not view.led:
        last = f"; the last one was {view.leader.holder}" if view.leader.holder else ""
        words = f"no process leads, so no round closes{last}"
        since = view.leader.until if view.leader.holder else None
        waits.append(Wait("leader", words, since, None, "until a process takes the lease"))
    running = [name for name, until in view.ingest.items() if until > view.now]
    if not running:
        silent = f" ({first_few(sorted(view.ingest), 3)} silent)" if view.ingest else ""
        words = f"no process accepts updates{silent}"
        waits.append(Wait("ingest", words, None, None, "until one is started (lichen coordinator ingest)"))
    return waits
