"""What runs beside the fleet: the simulated seeds, the baseline, the look into the coordinator's database."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from lichen.demo import study
from lichen.demo.asking import ask
from protocol.errors import Transient

if TYPE_CHECKING:
    from lichen.demo.fleet import Fleet
    from lichen.demo.processes import Child

STUDY_FILE: Final = "study-{}.jsonl"
_STUDIES: Final = 3
"""Processes that simulate, side by side."""


async def start_study(fleet: "Fleet[Any]") -> None:
    """Begin to simulate the seeds and variants: some processes, that idle processors take from each other."""
    first = fleet.options.seed + 1
    seeds = range(first, first + fleet.options.study_seeds)
    for number in range(min(_STUDIES, len(seeds))):
        job = {
            "out": str(fleet.layout.root / STUDY_FILE.format(number)),
            "rounds": fleet.options.rounds,
            "seeds": list(seeds[number::_STUDIES]),
        }
        await fleet.start_beside(f"study-{number}", "lichen.demo.study", job)


def study_lines(fleet: "Fleet[Any]") -> list[study.Line]:
    """What the simulations have found so far."""
    files = sorted(fleet.layout.root.glob(STUDY_FILE.format("*")))
    return sorted((line for file in files for line in study.read(file)), key=lambda line: line.seed)


async def finish_study(fleet: "Fleet[Any]") -> list[study.Line]:
    """Wait for the simulated fleets; an empty list where there are none."""
    for name, child in fleet.beside.items():
        if name.startswith("study-"):
            await finish(fleet, child, "the simulated fleets")
    return study_lines(fleet)


async def baseline(fleet: "Fleet[Any]", stores: dict[str, Path]) -> list[dict[str, Any]]:
    """What each device reaches alone on the windows in its store, and the sizes on the wire."""
    out = fleet.layout.root / "alone.jsonl"
    job = {
        "out": str(out),
        "task": fleet.stage.task.model_dump(mode="json"),
        "unseen": str(fleet.layout.unseen),
        "stores": {name: str(folder) for name, folder in stores.items()},
        "rounds": fleet.options.rounds,
        "seed": fleet.options.seed,
    }
    child = await fleet.start_beside("alone", "lichen.demo.baseline", job)
    await finish(fleet, child, "what each device reaches alone")
    return [json.loads(line) for line in out.read_text().splitlines()]


async def finish(fleet: "Fleet[Any]", child: "Child", what: str) -> None:
    """Wait for a child to end by itself.

    Raises:
        Transient: it failed, or took too long; the message shows the end of its log.
    """
    await fleet.wait(what, lambda: child.pid is None, fleet.options.timeout_s)
    code = child.process.returncode if child.process else None
    if code != 0:
        raise Transient(f"{what}: the process ended with exit status {code}; its log ends:\n{child.tail()}")


async def history(fleet: "Fleet[Any]") -> dict[str, Any]:
    """What the coordinator's database says, by its own command.

    Raises:
        Transient: the command failed or took more than a minute.
    """
    config = str(fleet.layout.config("coordinator"))
    found: dict[str, Any] = await ask(fleet, "coordinator", "history", "--config", config)
    return found
