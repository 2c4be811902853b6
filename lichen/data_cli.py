"""``lichen data``: what real data is at hand, and recordings made from it."""

import json
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import typer

from lichen import spar
from protocol.errors import Misconfigured
from protocol.task import Task
from runtime.outputs import writing
from runtime.settings import load_toml

app = typer.Typer(no_args_is_help=True, help="Data sets and recordings.", add_completion=False)
Format = Literal["table", "json"]


@app.command("spar")
def show_spar(
    output_format: Annotated[Format, typer.Option("--format", help="table or json")] = "table",
) -> None:
    """Where SPAR is, whether it is the published file, and what each person did."""
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
    if output_format == "json":
        typer.echo(json.dumps({"file": str(path), "sha256": spar.SHA256, "people": rows}, indent=2))
        return
    typer.echo(f"{path}\nSHA-256 {spar.SHA256} (as published)\n\nperson  series  seconds")
    for row in rows:
        typer.echo(f"{row['person']:>6}  {row['series']:>6}  {row['seconds']:>7}")


@app.command()
def recording(
    person: Annotated[int, typer.Argument(help="1 to 10", min=1, max=10)],
    out: Annotated[Path, typer.Option(help="the npz to write")],
    seed: Annotated[int | None, typer.Option(help="shuffles the order of the exercises")] = None,
) -> None:
    """Write one person's exercises as a recording that an agent's replay source plays."""
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
    """Cut recordings into labelled windows, as a device would: what a coordinator judges versions on."""
    from edge_agent.offline import windows_of  # noqa: PLC0415 - the other commands need no agent
    from edge_agent.sources.recording import read  # noqa: PLC0415 - as above
    from models import windowset  # noqa: PLC0415 - as above

    chosen = load_toml(Task, task)
    cut = windowset.concat([windows_of(chosen, read(file)) for file in recordings])
    labelled = windowset.select(cut, cut.y_B >= 0)
    if not len(labelled):
        raise Misconfigured(
            f"{', '.join(map(str, recordings))}: none of {len(cut)} windows is labelled; "
            "nothing can be judged on them"
        )
    with writing(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        windowset.save(out, labelled)
    counts = np.bincount(labelled.y_B, minlength=len(chosen.labels))
    words = ", ".join(f"{label} {count}" for label, count in zip(chosen.labels, counts, strict=True))
    typer.echo(f"{out}: {len(labelled)} labelled windows of {len(cut)}: {words}")
