"""``lichen bench NAME``: measure, and print a table or one JSON object."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from lichen_lab.benchmarks import pictures, registry, stored_results
from lichen_lab.benchmarks.result import Bench, ResultRow, Say, as_json, as_table
from protocol.errors import Misconfigured, Transient
from runtime import exit_codes
from runtime.cli import Format, FormatOption
from runtime.outputs import writing

Quick = Annotated[bool, typer.Option("--quick", help="A small run of under a minute.")]
Light = Annotated[bool, typer.Option("--quick", help="Without torch and onnx, as the tests run it.")]
Out = Annotated[Path | None, typer.Option("--out", help="Also write NAME.json into this folder.")]
Seeds = Annotated[
    int | None,
    typer.Option(
        min=1, help="Repetitions, from --seed on.", show_default="as many as the study's tables have"
    ),
]
FirstSeed = Annotated[int, typer.Option(min=0, help="The first seed.")]
Workers = Annotated[int | None, typer.Option(min=1, help="Processes.", show_default="one a CPU")]
Resume = Annotated[
    Path | None,
    typer.Option(
        help="File of finished runs, which an interrupted bench reuses.", show_default="the cache's"
    ),
]
AnyCode = Annotated[
    bool, typer.Option("--any-code", help="Reuse finished runs of other versions of the code, too.")
]
Report = Annotated[Path | None, typer.Option(help="Write a page with the curves and tables.")]

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Measure what lichen promises; each command prints a table or JSON.",
)
_ERRORS = Console(stderr=True)


def _show(bench: Bench, rows: list[ResultRow], shape: Format, out: Path | None) -> None:
    if out is not None:
        with writing(out):
            out.mkdir(parents=True, exist_ok=True)
            (out / f"{bench.name}.json").write_text(as_json(bench, rows) + "\n")
    if shape is Format.JSON:
        typer.echo(as_json(bench, rows))
    else:
        width = None if Console().is_terminal else 160
        Console(width=width).print(as_table(bench, rows, registry.WORDS.get(bench.name, "")))


def _say(name: str, line: str) -> None:
    _ERRORS.print(f"{name}: {line}", style="dim", markup=False)


def _run(wanted: tuple[str | Bench, ...], *, quick: bool, shape: Format, out: Path | None) -> None:
    """Run the benchmarks in turn; a failed one does not stop the next."""
    failed = 0
    for one in wanted:
        name = one if isinstance(one, str) else one.name
        try:
            bench = registry.bench(one) if isinstance(one, str) else one
            rows = bench.run(quick, partial(_say, name))
            _show(bench, rows, shape, out)
            if not bench.sound(rows):
                failed = failed or exit_codes.SOFTWARE
        except (Misconfigured, Transient) as error:
            _ERRORS.print(f"{name}: {error}", markup=False)
            failed = failed or exit_codes.of(error)
    if failed:
        raise typer.Exit(failed)


_STUDIES = {
    "qqr": "quantity, every_round, quality, bits, bytes, dead_sensor, new_class, personal; and attribution, "
    "av_mnist, beyond, bits_noisy, both, literal, literal_tune, rates, sweeps, tune, if named.",
    "disentafl": "table, equal, ablation, bytes, cost; and beyond, losses, shapes, vm, own_share, rho, "
    "domains, widths, options, tune, vm_tune, which run only when named.",
    "tactfl": "table, missing, segments, labels, encoders, aggregators, shift, broken; and protocol, "
    "protocol_others, protocol_missing, protocol_lstm, pairs, beyond, rivals, weights, dsads, scarce, "
    "protocol_tune, rivals_tune, tune, if named.",
    "mmfed3_hide": "table, rates, fusions, scores, bytes, throughput; and beyond, clients, controls, "
    "denoisers, fixed_weights, full, full_warm, noise, steps, tune, which run only when named.",
    "privacy": "central, canary, membership, membership_model, inversion; and local, central_tune, "
    "local_tune, which run only when named.",
    "labels": "curve, rules, linear, wrong, uneven, faulty; and cold, longer, tune, if named.",
}
"""Benchmark with parts -> list of parts."""


def _add(name: str) -> None:
    def command(*, quick: Quick = False, shape: FormatOption = Format.TABLE, out: Out = None) -> None:
        _run((name,), quick=quick, shape=shape, out=out)

    command.__doc__ = registry.WORDS[name]
    app.command(name)(command)


_OWN_OPTIONS = frozenset({"kills", "matrix"})

for _name in registry.names():
    if _name not in _OWN_OPTIONS | _STUDIES.keys():
        _add(_name)


@app.command()
def kills(
    *,
    quick: Quick = False,
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds, from --seed on.")] = 10,
    seed: Annotated[int, typer.Option(min=0, help="The first seed; each names one plan of kills.")] = 0,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of each seed.")] = 20,
    power_cuts: Annotated[
        bool, typer.Option("--power-cuts", help="Disks of killed daemons lose unsynced data (needs root).")
    ] = False,
    keep: Annotated[Path | None, typer.Option(help="Keep the folders of runs with violations here.")] = None,
    shape: FormatOption = Format.TABLE,
    out: Out = None,
) -> None:
    """SIGKILL for broker, coordinator and agents at random times; a violation ends with status 70."""
    from lichen_lab.benchmarks.fault_injection import kills as bench  # noqa: PLC0415 - only on this path

    def run(quick: bool, say: Say) -> list[ResultRow]:  # noqa: FBT001 - every benchmark's signature
        wanted = range(seed, seed + 1) if quick else range(seed, seed + seeds)
        return bench.measure(wanted, bench.QUICK_ROUNDS if quick else rounds, say, keep, power=power_cuts)

    _run((replace(bench.BENCH, run=run),), quick=quick, shape=shape, out=out)


@app.command()
def matrix(
    *,
    quick: Light = False,
    fault: Annotated[
        list[str] | None, typer.Option(help="Only this fault; repeatable. Default: all.")
    ] = None,
    cluster: Annotated[
        bool, typer.Option("--cluster", help="2 leads, 3 ingest processes, PostgreSQL; other faults.")
    ] = False,
    keep: Annotated[Path | None, typer.Option(help="Keep the folders of failed rows here.")] = None,
    shape: FormatOption = Format.TABLE,
    out: Out = None,
) -> None:
    """Faults x steps of a round, on real processes over Mosquitto; a violation ends with status 70."""
    from lichen_lab.benchmarks.fault_injection import matrix_bench as bench  # noqa: PLC0415 - only on this path

    def run(quick: bool, say: Say) -> list[ResultRow]:  # noqa: FBT001 - every benchmark's signature
        return bench.measure(tuple(fault or ()), say, light=quick, keep=keep, cluster=cluster)

    _run((replace(bench.CLUSTER if cluster else bench.BENCH, run=run),), quick=quick, shape=shape, out=out)


def _add_study(name: str, parts: str) -> None:
    help_ = f"Only this part; may be given again: {parts}"

    def command(
        *,
        quick: Quick = False,
        part: Annotated[list[str] | None, typer.Option(help=help_)] = None,
        seeds: Seeds = None,
        seed: FirstSeed = 0,
        workers: Workers = None,
        resume: Resume = None,
        any_code: AnyCode = False,
        report: Report = None,
        shape: FormatOption = Format.TABLE,
        out: Out = None,
    ) -> None:
        from lichen_lab.benchmarks.study.study import StudyRequest  # noqa: PLC0415 - only on this path

        study = registry.study(name)
        request = StudyRequest(tuple(part or ()), seeds, seed, workers, resume, any_code, report)

        def run(quick: bool, say: Say) -> list[ResultRow]:  # noqa: FBT001 - every benchmark's signature
            return study.measure(replace(request, quick=quick), say)

        _run((replace(study.bench(), run=run),), quick=quick, shape=shape, out=out)

    command.__doc__ = registry.WORDS[name]
    app.command(name)(command)


for _name, _parts in _STUDIES.items():
    _add_study(_name, _parts)


@app.command()
def rekey(
    study: Annotated[str, typer.Argument(help=f"One of {', '.join(_STUDIES)}.")],
    *,
    workers: Workers = None,
    resume: Resume = None,
) -> None:
    """Reuse finished runs of earlier code, if one run of each kind gives the same result again."""
    from lichen_lab.benchmarks.study.rekey import rekey as take_over  # noqa: PLC0415 - only on this path

    if study not in _STUDIES:
        raise Misconfigured(f"no study {study!r}; there are {', '.join(_STUDIES)}")
    taken, left = take_over(registry.study(study), resume, partial(_say, study), workers)
    typer.echo(f"{taken} finished runs count for this version of the code from now on; {left} cannot")


@app.command("all")
def everything(*, quick: Quick = False, shape: FormatOption = Format.TABLE, out: Out = None) -> None:
    """Run all benchmarks one after the other (JSON: one object a line)."""
    _run(registry.names(), quick=quick, shape=shape, out=out)


@app.command("list")
def listing(*, shape: FormatOption = Format.TABLE) -> None:
    """List the benchmarks."""
    if shape is Format.JSON:
        typer.echo(json.dumps(registry.WORDS))
        return
    for name, words in registry.WORDS.items():
        typer.echo(f"{name:11} {words}")


def _require_sound(run: stored_results.Stored) -> None:
    """Raise Misconfigured if the figures break a promise; such results must not be stored."""
    rows = map(stored_results.as_row, run["rows"])
    if run["bench"] in registry.names() and not registry.bench(run["bench"]).sound(rows):
        raise Misconfigured(f"{run['bench']}: the run broke a promise; nothing of it was stored")


@app.command()
def pages(
    results: Annotated[
        list[Path] | None,
        typer.Argument(help="Results that --out wrote; stored before the pages are written."),
    ] = None,
    *,
    docs: Annotated[Path, typer.Option(help="The folder of the documents.")] = Path("docs"),
) -> None:
    """Store results below docs/benchmarks, and write the tables of all pages from the stored results."""
    try:
        for path in results or ():
            for run in stored_results.read(path):
                _require_sound(run)
                typer.echo(f"stored in {stored_results.store(run, docs / stored_results.RESULTS)}")
        for page in stored_results.render(docs):
            typer.echo(f"wrote {page}")
    except Misconfigured as error:
        _ERRORS.print(str(error), markup=False)
        raise typer.Exit(exit_codes.CONFIG) from None


@app.command("pictures")
def draw_pictures(
    *, docs: Annotated[Path, typer.Option(help="The folder of the documents.")] = Path("docs")
) -> None:
    """Draw the pictures of docs/pictures that docs/benchmarks/pictures lays out, from the stored results."""
    try:
        for path in pictures.draw(docs):
            typer.echo(f"drew {path}")
    except Misconfigured as error:
        _ERRORS.print(str(error), markup=False)
        raise typer.Exit(exit_codes.CONFIG) from None
