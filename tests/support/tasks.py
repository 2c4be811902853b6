"""Tasks, and headers of updates and bundles; a test names only the fields that concern it."""

from collections.abc import Iterable
from typing import Any

from lichen_lab.simulation.processes.fleet_files import toml
from protocol.frames.headers import UpdateHeader
from protocol.tasks.network import Encoder, Network
from protocol.tasks.task import Modality, Task, Window


def sensors(**shapes: tuple[int, float]) -> tuple[Modality, ...]:
    """Modalities: name -> channels and rate in Hz."""
    return tuple(Modality(name=name, channels=c, rate_hz=hz) for name, (c, hz) in shapes.items())


def small_task(modalities: tuple[Modality, ...], labels: Iterable[str] = "abc", **fields: Any) -> Task:
    """Windows of two seconds (``window`` may change that); fields are of :class:`Task`."""
    given: dict[str, Any] = {"name": "t", "labels": tuple(labels), "modalities": modalities}
    return Task.model_validate({**given, "window": Window(length_s=2.0), **fields})


def small_network(feature_dim: int = 8, hidden_dim: int = 6, **encoders: Encoder) -> Network:
    """A network with these encoders by modality."""
    return Network(encoders=encoders, feature_dim=feature_dim, hidden_dim=hidden_dim)


def task_toml(
    labels: Iterable[str] = "ab", name: str = "t", *, streams: dict[str, dict[str, Any]], **tables: Any
) -> str:
    """A ``task.toml``.

    Args:
        labels: of its classes.
        name: of the task.
        streams: modality -> its keys.
        tables: all further keys and tables.
    """
    modalities = [{"name": stream, **keys} for stream, keys in streams.items()]
    return toml({"name": name, "labels": tuple(labels), "modalities": modalities, **tables})


def stream(channels: int, rate_hz: float, **keys: Any) -> dict[str, Any]:
    """One of ``streams``."""
    return {"channels": channels, "rate_hz": rate_hz, **keys}


def update_header(task: Task, device: str = "d", **fields: Any) -> UpdateHeader:
    """The header of an update in round 1 with twelve windows and no other details."""
    given = {
        "task": task.name,
        "method": task.method,
        "device": device,
        "round": 1,
        "base": "0" * 64,
        "samples": 12,
        "counts": {},
        "missing": {},
        "quality": {},
    }
    return UpdateHeader.model_validate(given | fields)
