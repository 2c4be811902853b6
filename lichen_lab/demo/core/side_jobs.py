"""Side jobs: programs of low priority that compute beside the fleet and write a line for each result."""

import asyncio
import json
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from protocol.errors import Transient

if TYPE_CHECKING:
    from lichen_lab.demo.core.fleet import DemoFleet
    from lichen_lab.simulation.processes.process import Child

Line = Mapping[str, Any]


def main(results: Callable[[Line], Iterable[Line]]) -> None:
    """Main function of a side job's module: ``python -P -m MODULE JOB.json``.

    Each result is written at once as a line of JSON to the job's ``out`` file, so that the parent can show
    progress and loses nothing.
    """
    import torch  # noqa: PLC0415 - the parent never imports it

    torch.set_num_threads(1)
    job = json.loads(Path(sys.argv[1]).read_text())
    with Path(job["out"]).open("a") as sink:
        for line in results(job):
            print(json.dumps(line), file=sink, flush=True)


def lines(path: Path) -> list[dict[str, Any]]:
    """Complete lines of JSON so far, those of a rotated file first."""
    files = [file for file in (path.with_name(f"{path.name}.1"), path) if file.is_file()]
    texts = [line for file in files for line in file.read_text().splitlines(keepends=True)]
    return [json.loads(line) for line in texts if line.endswith("\n")]


async def run(fleet: "DemoFleet[Any]", name: str, module: str, job: Line, what: str) -> list[dict[str, Any]]:
    """Run a job to its end.

    Args:
        fleet: the job runs beside it.
        name: of process and files.
        module: has :func:`main`.
        job: the job's keys besides ``out``.
        what: the job finds, for messages.

    Returns:
        Its results.

    Raises:
        Transient: it failed, or took too long; the message shows the end of its log.
    """
    out = fleet.layout.root / f"{name}.jsonl"
    await finish(fleet, await fleet.start_beside(name, module, {**job, "out": str(out)}), what)
    return await asyncio.to_thread(lines, out)


async def finish(fleet: "DemoFleet[Any]", child: "Child", what: str) -> None:
    """Wait for a job to end by itself.

    Raises:
        Transient: it failed, or took too long; the message shows the end of its log.
    """
    await fleet.wait(what, lambda: child.pid is None, fleet.options.timeout_s)
    code = child.process.returncode if child.process else None
    if code != 0:
        raise Transient(f"{what}: the process ended with exit status {code}; its log ends:\n{child.tail()}")
