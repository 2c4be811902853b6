"""``lichen export``: a version of a coordinator, or a local manifest, as an ONNX bundle; or all to MLflow."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Literal

import typer

from export.cli import ExportChoice, does, make, make_joined, read_manifest
from lichen.backbones.cli import backbone
from lichen.tracking.cli import mlflow
from models.backbones import files
from models.backbones.views import announced
from models.backbones.windows import paths_in
from protocol.bundle import unpack
from protocol.errors import Misconfigured
from protocol.frames.frame import digest
from protocol.tasks.task import Task
from runtime import exit_codes
from runtime.outputs import NotWritten
from runtime.settings.load import load_toml

app = typer.Typer(
    name="export",
    add_completion=False,
    pretty_exceptions_show_locals=False,
    invoke_without_command=True,
    no_args_is_help=False,
)


@app.callback()
def export(  # noqa: PLR0917 - options, given by name
    context: typer.Context,
    out: Annotated[Path | None, typer.Option(help="The bundle to write.", show_default=False)] = None,
    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", help="coordinator.toml, with its versions.", show_default=False),
    ] = None,
    version: Annotated[
        str | None,
        typer.Option(
            "--version",
            help="Which version of --config: a number, or best, by its evaluation; default: the newest.",
            show_default=False,
        ),
    ] = None,
    blobs: Annotated[
        Path | None,
        typer.Option(help="Instead of --config: a folder of blobs.", show_default=False),
    ] = None,
    manifest: Annotated[
        Path | None, typer.Option(help="With --blobs: the version's manifest (JSON).", show_default=False)
    ] = None,
    task: Annotated[
        Path | None,
        typer.Option(
            help="With --blobs: the task.toml it was trained for; with --config: a further task's name.",
            show_default=False,
        ),
    ] = None,
    inputs: Annotated[
        list[str] | None,
        typer.Option("--input", help="Routed methods: a modality that the device reads; default: all."),
    ] = None,
    targets: Annotated[
        list[str] | None,
        typer.Option("--target", help="Routed methods: a target that the device predicts; default: all."),
    ] = None,
    calibrate: Annotated[
        Path | None,
        typer.Option(
            help="Real windows for an int8 variant: a window set (npz) or a recording (npz, csv, parquet)."
        ),
    ] = None,
    allow_package: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-package",
            help="A package that the task may use, besides those of --config ([packages]). May be repeated.",
            show_default=False,
        ),
    ] = None,
    *,
    merge_backbone: Annotated[
        bool,
        typer.Option(
            "--merge-backbone",
            help="Write one ONNX file with the backbones before the network, for other programs than the "
            "agent; --out is that file.",
        ),
    ] = False,
    format_: Annotated[
        Literal["text", "json"], typer.Option("--format", help="Format of the report.")
    ] = "text",
) -> None:
    """Export a global version to an ONNX bundle, checked against torch before it is written.

    The version is one of a coordinator's (--config, --version), which may be running or not, or a local
    manifest with its blobs (--blobs, --manifest, --task). With --config, --task NAME is a further task of
    that fleet. With --merge-backbone it is one ONNX model in place of a bundle.
    """
    if context.invoked_subcommand is not None:
        if any(value is not None for value in (out, config, version, blobs, manifest, task, calibrate)):
            raise typer.BadParameter(f"options of {context.invoked_subcommand} go after its name")
        return
    if out is None:
        raise typer.BadParameter("--out is missing: the bundle to write")
    if merge_backbone and calibrate is not None:
        raise typer.BadParameter("--calibrate is for a bundle; leave it out with --merge-backbone")
    if out.exists() and not out.is_file():  # the file would replace a device
        raise NotWritten(f"--out {out}: is no file; choose another place", exit_codes.CANTCREAT)
    part = tuple(inputs or ()), tuple(targets or ())
    by_hand = {"--blobs": blobs, "--manifest": manifest, "--task": task}
    if config is not None:
        if given := [name for name in ("--blobs", "--manifest") if by_hand[name] is not None]:
            raise typer.BadParameter(f"{given[0]} and --config exclude each other: the coordinator knows it")
        from lichen.commands.export_version import version_of  # noqa: PLC0415 - a machine that only exports has no SQL

        with TemporaryDirectory(prefix="lichen-export-") as scratch:
            further = None if task is None else str(task)
            chosen = version_of(config, version, Path(scratch), further, with_backbones=merge_backbone)
            chosen = replace(chosen, packages=(*chosen.packages, *(allow_package or ())))
            _export(chosen, out, part, calibrate, merged=merge_backbone, as_json=format_ == "json")
        return
    if blobs is None or manifest is None or task is None:
        lacking = next(name for name, value in by_hand.items() if value is None)
        raise typer.BadParameter(f"{lacking} is missing; or name a coordinator's settings with --config")
    if version is not None:
        raise typer.BadParameter("--version goes with --config; a manifest is of one version")
    chosen = replace(_at_hand(blobs, manifest, task), packages=tuple(allow_package or ()))
    _export(chosen, out, part, calibrate, merged=merge_backbone, as_json=format_ == "json")


app.command("mlflow")(mlflow)
app.command("backbone")(backbone)


def _export(
    chosen: ExportChoice,
    out: Path,
    part: tuple[Sequence[str], Sequence[str]],
    calibrate: Path | None,
    *,
    merged: bool,
    as_json: bool,
) -> None:
    """Write the bundle, or the model with its backbones, and report it.

    Args:
        chosen: the version.
        out: the file.
        part: inputs and targets of a routed method.
        calibrate: windows for an int8 variant.
        merged: join backbones and head.
        as_json: the report.
    """
    made = make_joined(chosen, out, *part) if merged else make(chosen, out, *part, calibrate)
    bundle, parity = made
    if as_json:
        report = {
            "out": str(out),
            "version": chosen.version.version,
            "size": len(bundle),
            "digest": digest(bundle),
        }
        typer.echo(json.dumps({**report, "parity": parity.as_dict()}))
        return
    if merged:
        does_what = f"it has the backbones of {', '.join(chosen.backbones)} inside, and takes their windows"
        agree = "joined model, and backbones before torch, agree"
    else:
        does_what, agree = f"it {does(unpack(bundle)[0])}", "ONNX model and torch agree"
    typer.echo(
        f"{out}: version {chosen.version.version} of {chosen.task.name}, {len(bundle)} bytes\n"
        f"{does_what}\n{agree}: {parity.words()}"
    )


def _at_hand(blobs: Path, manifest: Path, task: Path) -> ExportChoice:
    """A version from files that are named one by one; files of backbones are beside the task's.

    Raises:
        Misconfigured: one is missing or something else, or they belong to different tasks.
    """
    the_task = load_toml(Task, task, named_by="--task")
    version, base = read_manifest(manifest)
    if version.task != the_task.name:
        raise Misconfigured(f"{manifest} is of task {version.task!r}, {task} of {the_task.name!r}")
    the_task = files.prepare(the_task, task.parent)
    return ExportChoice(announced(the_task), version, base, blobs, backbones=paths_in(the_task, task.parent))
