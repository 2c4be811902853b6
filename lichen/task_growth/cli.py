"""``lichen task grow``: the starting weights of a changed task, from a version of the earlier one."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from protocol.errors import Misconfigured
from protocol.tasks.task import Task
from runtime import exit_codes
from runtime.cli import Format, FormatOption
from runtime.outputs import NotWritten, writing
from runtime.settings.load import load_toml


def grow(
    task: Annotated[Path, typer.Argument(help="the changed task file")],
    earlier: Annotated[
        Path, typer.Option("--from", help="coordinator.toml of the earlier task, which may be running")
    ],
    out: Annotated[Path, typer.Option(help="the weights to write (npz), for [start] of the new coordinator")],
    version: Annotated[
        str | None, typer.Option(help="of the earlier task: a number, or best; default: the newest")
    ] = None,
    *,
    force: Annotated[bool, typer.Option("--force", help="replace an existing file")] = False,
    output_format: FormatOption = Format.TABLE,
) -> None:
    """Begin a changed task from an earlier version: a class, modality or target more, or another network.

    Takes weights whose names and shapes fit, copies rows of classes and columns of modalities by name, and
    makes the others fresh by the task's seed; says which. Set the file as [start] weights of a coordinator
    with a new state folder.
    """
    from coordinator.task import problems  # noqa: PLC0415 - the help works without it
    from export.cli import read_state  # noqa: PLC0415 - as above
    from lichen.commands.export_version import version_of  # noqa: PLC0415 - as above
    from models.registry import method  # noqa: PLC0415 - as above
    from models.tensors import flatten, write_npz  # noqa: PLC0415 - as above
    from models.training.growth import grown  # noqa: PLC0415 - as above

    if out.exists() and not force:
        raise NotWritten(f"--out {out}: exists already; --force replaces it", exit_codes.CANTCREAT)
    new = load_toml(Task, task, named_by="the argument")
    if wrong := problems(new):
        raise Misconfigured("\n".join(f"{task}: {words}" for words in wrong))
    _require_windows(new, task)
    with TemporaryDirectory() as scratch:
        chosen = version_of(earlier, version, Path(scratch))
        _require_windows(chosen.task, earlier)
        state = read_state(chosen.version, chosen.blobs)
    spec = method(new.method)
    found = grown(spec, new, spec.client().initial(new, new.seed), chosen.task, state)
    if not (found.taken or found.partly):
        raise Misconfigured(
            f"{task}: nothing of version {chosen.version.version} of task {chosen.task.name!r} fits: another "
            "method or network"
        )
    with writing(out):
        write_npz(out, flatten(found.state))
    if output_format is Format.JSON:
        told = {"taken": list(found.taken), "partly": dict(found.partly), "new": list(found.fresh)}
        typer.echo(json.dumps({"version": chosen.version.version, "out": str(out), **told}))
        return
    typer.echo(f"{out}: from version {chosen.version.version} of task {chosen.task.name}\n{found.words}")


def _require_windows(task: Task, file: Path) -> None:
    if task.graph is not None:
        raise Misconfigured(
            f"{file}: task {task.name!r} is on knowledge graphs: its weights belong to the entities of each "
            "device, and cannot begin another task"
        )
