"""A fleet's files under one folder: their paths, and the configurations of all processes."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lichen_lab.simulation.processes.embedded_broker import HOST
from protocol.tasks.task import Task

Table = Mapping[str, Any]


@dataclass(frozen=True)
class FleetFiles:
    """Paths and ports.

    Attributes:
        root: folder of all files.
        port: of the broker.
        fleet: the fleet's name.
        devices: names of the agents.
        ports: name -> port of the proxy, for processes that reach the broker through one.
        link: further keys of ``[mqtt]`` of all processes.
    """

    root: Path
    port: int
    fleet: str
    devices: tuple[str, ...] = ()
    ports: Mapping[str, int] = field(default_factory=dict)
    link: Table = field(default_factory=dict)

    def config(self, name: str) -> Path:
        """The configuration of one process."""
        return self.root / "config" / f"{name}.toml"

    def state(self, name: str) -> Path:
        """Its state folder."""
        return self.root / "state" / name

    def log(self, name: str) -> Path:
        """Its log."""
        return self.root / "logs" / f"{name}.log"

    def recording(self, name: str) -> Path:
        """The recording that a device plays."""
        return self.root / "recordings" / f"{name}.npz"

    def mqtt(self, name: str) -> dict[str, Any]:
        """``[mqtt]`` of a process."""
        return {"host": HOST, "port": self.ports.get(name, self.port), **self.link}

    def replay(self, name: str, speed: float, **more: Any) -> dict[str, Any]:
        """A ``[[source]]`` that replays the device's recording ``speed`` times faster than real time."""
        return {"kind": "replay", "file": str(self.recording(name)), "speed": speed, **more}

    def agent(self, name: str, *changes: Table, **tables: Any) -> dict[str, Any]:
        """The configuration of an agent; ``tables`` and ``changes`` are merged into it key by key."""
        state = self.state(name)
        base = {
            "fleet": self.fleet,
            "device": name,
            "state_dir": str(state),
            "cache_dir": str(state / "cache"),
        }
        return merged({**base, "mqtt": self.mqtt(name), "log": {"format": "json"}}, tables, *changes)

    def coordinator(self, *changes: Table, **tables: Any) -> dict[str, Any]:
        """The configuration of the coordinator; ``tables`` and ``changes`` are merged into it key by key."""
        name = "coordinator"
        base = {"fleet": self.fleet, "state_dir": str(self.state(name)), "task": str(self.config("task"))}
        return merged({**base, "mqtt": self.mqtt(name), "log": {"format": "json"}}, tables, *changes)

    def write_task(self, task: Task) -> None:
        """Write ``task.toml``."""
        write_toml(self.config("task"), task.model_dump(mode="json", exclude_none=True))


def merged(base: Table, *changes: Table) -> dict[str, Any]:
    """Tables merged key by key, one level deep; the later one wins."""
    found = dict(base)
    for change in changes:
        for key, value in change.items():
            old = found.get(key)
            if isinstance(old, Mapping) and isinstance(value, Mapping):
                found[key] = {**old, **value}
            else:
                found[key] = value
    return found


def toml(table: Table, prefix: str = "") -> str:
    """A nested table as TOML: strings, numbers, booleans, lists, tables, lists of tables."""
    lines, tables = [], []
    for key, value in table.items():
        if value is None:
            continue
        if isinstance(value, Mapping):
            body = toml(value, f"{prefix}{key}.")
            tables.append(f"\n[{prefix}{key}]\n{body}")
        elif isinstance(value, list | tuple) and value and all(isinstance(v, Mapping) for v in value):
            tables += [f"\n[[{prefix}{key}]]\n{toml(v, f'{prefix}{key}.')}" for v in value]
        else:
            plain = list(value) if isinstance(value, tuple) else value
            lines.append(f"{key} = {json.dumps(plain, ensure_ascii=False)}")
    return "\n".join(lines) + "\n" + "".join(tables)


def write_toml(path: Path, table: Table) -> None:
    """Write a configuration file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(toml(table))
