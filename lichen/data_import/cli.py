"""``lichen data import``: options, and the report in words."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final, Literal

import typer

from lichen.data_import import import_options
from lichen.data_import.import_options import ImportOptions
from lichen.data_import.listing import listing
from lichen.data_import.run import ImportReport, run
from protocol.errors import Misconfigured
from runtime.cli import Format, FormatOption

_ROWS: Final = 20
_REFUSED: Final = 5
_CLASSES: Final = 6


def import_data(
    paths: Annotated[list[Path], typer.Argument(help="tables, WAV files, images, or folders of them")],
    out: Annotated[Path, typer.Option(help="folder for the recordings: a new or an empty one")] = Path(
        "recordings"
    ),
    *,
    kind: Annotated[
        Literal["table", "sound", "image"] | None, typer.Option(help="of the files, if there are several")
    ] = None,
    time: Annotated[str | None, typer.Option(help="tables: column of the times")] = None,
    time_unit: Annotated[
        Literal["s", "ms", "us", "ns", "iso"] | None, typer.Option(help="tables: unit of the times")
    ] = None,
    rate_hz: Annotated[
        float | None,
        typer.Option(
            help="tables: rows a second, without times; sound: rate of the recordings", min=1e-6, max=48_000
        ),
    ] = None,
    label: Annotated[str | None, typer.Option(help="tables: column of the classes")] = None,
    device: Annotated[
        str | None, typer.Option(help="tables: column of the device or person: a recording for each")
    ] = None,
    modality: Annotated[
        list[str] | None, typer.Option(help="tables: acc=acc_x,acc_y,acc_z; others are left out")
    ] = None,
    target: Annotated[list[str] | None, typer.Option(help="tables: speed=COLUMN, a further target")] = None,
    columns: Annotated[
        str | None, typer.Option(help="tables without a header: names of all columns, parted by commas")
    ] = None,
    class_: Annotated[
        list[str] | None, typer.Option("--class", help="1=walking: name of a class; 0=: no label")
    ] = None,
    examples: Annotated[bool, typer.Option("--examples", help="tables: each row is an example")] = False,
    longest_gap_s: Annotated[
        float | None, typer.Option(help="tables: longer gaps in time are shortened to this", min=0.1)
    ] = None,
    name: Annotated[str | None, typer.Option(help="of the modality of sound, images or examples")] = None,
    pattern: Annotated[
        str | None, typer.Option(help="what paths say: '{device}/{label}/*', '{label}_{device}_*'")
    ] = None,
    labels: Annotated[
        Path | None, typer.Option(help="table with columns file, label and device [labels.csv in the folder]")
    ] = None,
    size: Annotated[str, typer.Option(help="images: WIDTHxHEIGHT in pixels")] = "64x64",
    colour: Annotated[bool, typer.Option("--colour", help="images: three channels, not one")] = False,
    clip_s: Annotated[
        float | None,
        typer.Option(help="sound: each file is an example of so many seconds", min=0.001, max=3600),
    ] = None,
    channels: Annotated[int, typer.Option(help="sound: 1 mixes all channels", min=1, max=8)] = 1,
    deal: Annotated[
        int | None, typer.Option(help="deal examples to so many recordings, at random", min=2, max=10_000)
    ] = None,
    seed: Annotated[int, typer.Option(help="of the order of examples, and of --deal", min=0)] = 0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="read and report, write nothing")] = False,
    output_format: FormatOption = Format.TABLE,
) -> None:
    """Make recordings from your files: csv, parquet, WAV, or folders of images.

    What is not given is guessed and printed. Each device or person becomes one recording (npz) in --out, for
    lichen data check, lichen task init, lichen simulate and replay sources.
    """
    options = ImportOptions(
        time=time,
        unit=time_unit,
        rate_hz=rate_hz,
        label=label,
        device=device,
        modalities=import_options.lists("--modality", modality or ()),
        targets=import_options.pairs("--target", target or ()),
        columns=tuple(one.strip() for one in columns.split(",")) if columns else (),
        classes=import_options.pairs("--class", class_ or ()),
        examples=examples,
        longest_gap_s=longest_gap_s,
        name=name,
        size=import_options.size_of(size),
        colour=colour,
        clip_s=clip_s,
        channels=channels,
        deal=deal,
        seed=seed,
    )
    import_options.check(options)
    found = listing(paths, kind, pattern, labels)
    if deal is not None and found.kind == "table" and not examples:
        raise Misconfigured(
            "--deal deals examples: rows with times belong together (--examples, if they do not)"
        )
    report = run(found, options, None if dry_run else out)
    typer.echo(json.dumps(report.as_json()) if output_format is Format.JSON else "\n".join(lines(report)))


def lines(report: ImportReport) -> Iterator[str]:
    """The report for people."""
    for subject, words in dict.fromkeys(report.mapping):
        yield f"{subject:<9}  {words}"
    yield from _table(report)
    for words in report.notes:
        yield f"note: {words}"
    for words in report.refused[:_REFUSED]:
        yield f"refused: {words}"
    if len(report.refused) > _REFUSED:
        yield f"refused: {len(report.refused) - _REFUSED} more"
    rest = f", {len(report.refused)} files refused" if report.refused else ""
    if report.out is None:
        count = len(report.recordings)
        yield f"{report.files} files, {count} recordings{rest}: nothing was written (--dry-run)"
        return
    yield f"{report.out}: {len(report.recordings)} recordings of {report.files} files{rest}"
    yield f"next: lichen task init {report.out} --out task.toml"


def _table(report: ImportReport) -> Iterator[str]:
    """A row a recording: its length, its samples, and the share of each class."""
    shown = report.recordings[:_ROWS]
    wide = max([9, *(len(one.name) for one in shown)])
    names = [*dict.fromkeys(name for one in report.recordings for name in one.samples)]
    heads = "  ".join(f"{name:>{max(9, len(name))}}" for name in names)
    yield f"{'recording':<{wide}}  {'seconds':>9}  {heads}  classes"
    for one in shown:
        counts = "  ".join(f"{one.samples[name]:>{max(9, len(name))}}" for name in names)
        total = sum(one.seconds.values())
        largest = sorted(one.seconds.items(), key=lambda item: -item[1])[:_CLASSES]
        shares = ", ".join(f"{report.names[code]} {part / total:.0%}" for code, part in largest if total)
        more = f" and {len(one.seconds) - _CLASSES} more" if len(one.seconds) > _CLASSES else ""
        yield f"{one.name:<{wide}}  {one.last_s - one.first_s:>9.1f}  {counts}  {shares or 'none'}{more}"
    if len(report.recordings) > _ROWS:
        yield f"... and {len(report.recordings) - _ROWS} more"
