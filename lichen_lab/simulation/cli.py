"""``lichen simulate``: a fleet's training without a broker; with ``--faults``, its daemons under faults."""

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from lichen_lab.simulation.option_rules import options_of, require_one_kind, world_kind
from protocol.errors import Misconfigured
from runtime.cli import Format, FormatOption

app = typer.Typer(add_completion=False)
_ONLINE: Final = "The devices of --dataset"


class CliParts(StrEnum):
    """Values of :data:`models.training.evaluation.Part`."""

    GROUP = "group"
    MODALITIES = "modalities"


class Dataset(StrEnum):
    """Names of ``dataset_tasks.STUDIES``, which is not imported for the help."""

    UCI_HAR = "uci-har"
    SPAR = "spar"
    AV_MNIST = "av-mnist"


def _option(name: str, words: str, **more: Any) -> Any:
    return typer.Option(name, help=words, show_default=False, **more)


def _online(name: str, words: str, **bounds: Any) -> Any:
    return _option(name, words, rich_help_panel=_ONLINE, **bounds)


TaskFile = Annotated[Path | None, _option("--task", "task.toml; --dataset has its own.")]
Data = Annotated[Path | None, _option("--data", "Folder with one npz, csv or parquet file a device.")]
Set = Annotated[
    Dataset | None, _option("--dataset", "Instead of --data: a data set that is dealt to devices.")
]
Test = Annotated[Path | None, _option("--test", "Labelled file to evaluate on, which no device has.")]
Validation = Annotated[
    Path | None,
    _option(
        "--validation",
        "Labelled file, as the coordinator's [evaluation]: rounds end when accuracy on it stays.",
    ),
]
Rounds = Annotated[int | None, _option("--rounds", "Number of rounds, instead of the task's.", min=1)]
Seed = Annotated[
    int | None, _option("--seed", "Seed, instead of the task's; with --faults the first seed.", min=0)
]
Options = Annotated[
    list[str] | None, _option("--option", "KEY=VALUE, overrides an option of the method; repeatable.")
]
Method = Annotated[str | None, _option("--method", "Method, instead of the task's.")]
Known = Annotated[
    Path | None,
    _option("--labelled", "Guided methods: the coordinator's labelled windows, instead of the task's."),
]
Allowed = Annotated[
    list[str] | None,
    _option("--allow-package", "A package that the task may use ([[packages]]). May be repeated."),
]
Profiles = Annotated[
    list[str] | None,
    _option(
        "--profile",
        "DEVICE=MODALITY,...:TARGET,..., what it may read and predict (a side left empty: all). May be "
        "repeated; of --data.",
    ),
]
Every = Annotated[int, typer.Option("--every", min=1, help="Evaluate every N rounds, and after the last.")]
By = Annotated[
    list[CliParts] | None,
    _option(
        "--by",
        "Also judge the last version on each group (person, device) of the test windows, or on all with "
        "fewer modalities. May be repeated.",
    ),
]
Local = Annotated[bool, _option("--alone", "Also train each device alone, and compare.")]
Own = Annotated[
    bool, _option("--personal", "Also evaluate the personal model of each device, on its classes.")
]
Threads = Annotated[int, typer.Option("--threads", min=1, help="Threads of torch, with one worker.")]
Faults = Annotated[
    bool,
    _option("--faults", "Instead: run the real coordinator and agents under faults drawn from seeds."),
]
OnCluster = Annotated[
    bool, typer.Option("--cluster", help="With --faults: the coordinator is several processes.")
]
OfSecure = Annotated[bool, typer.Option("--secure", help="With --faults: the rounds are secure.")]
OfPrivate = Annotated[bool, typer.Option("--private", help="With --faults: the task has a table [privacy].")]
OfTables = Annotated[
    bool,
    typer.Option(
        "--secure-tables", help="With --faults: the two state tables of secure rounds, without daemons."
    ),
]
Seeds = Annotated[int, typer.Option("--seeds", min=1, help="With --faults: number of worlds.")]
Workers = Annotated[
    int | None,
    _option(
        "--workers",
        "Number of processes; the result is the same. [default: 1; with --ray one for each CPU]",
        min=1,
    ),
]
AtOnce = Annotated[
    int,
    typer.Option(
        "--devices-at-once",
        min=1,
        help="Devices that a process trains as one computation: faster for small networks; values differ in "
        "their last bits.",
    ),
]
RayAddress = Annotated[
    str,
    _option(
        "--ray",
        "Run the devices on a Ray cluster: HOST:PORT of its head, auto (this machine's) or local (a new "
        "one); the result is the same.",
    ),
]
Trace = Annotated[bool, _option("--trace", "With --faults: print every event of the world of --seed.")]
Devices = Annotated[int | None, _online("--devices", "Number of devices.", min=1)]
Alpha = Annotated[float | None, _online("--alpha", "Dirichlet parameter; a small one makes classes uneven.")]
Pool = Annotated[int | None, _online("--pool", "Windows that a device sees in all.", min=1)]
Size = Annotated[int | None, _online("--size", "Windows that it holds at once.", min=1)]
Step = Annotated[int | None, _online("--step", "New windows a round.", min=0)]
Missing = Annotated[
    float | None,
    _online("--missing-share", "Share of windows without a modality, if affected.", min=0, max=1),
]
Affected = Annotated[float | None, _online("--affected-rounds", "Share of affected rounds.", min=0, max=1)]
Noisy = Annotated[
    float | None, _online("--noisy-rounds", "Share of rounds with a noisy modality.", min=0, max=1)
]
Snr = Annotated[float | None, _online("--snr-db", "Signal-to-noise ratio of the noisy modality, dB.")]
LabelledShare = Annotated[
    float | None,
    _online(
        "--labelled-share",
        "Guided methods: share of the windows that the coordinator has, labelled (default 0.1); devices have "
        "the rest, unlabelled.",
        min=0,
        max=1,
    ),
]
Prototypes = Annotated[
    int, _online("--prototype-devices", "The last N devices send prototypes only, without torch.", min=0)
]


@app.command()
def simulate(
    *,
    task: TaskFile = None,
    data: Data = None,
    test: Test = None,
    validation: Validation = None,
    dataset: Set = None,
    rounds: Rounds = None,
    seed: Seed = None,
    method: Method = None,
    option: Options = None,
    labelled: Known = None,
    allow_package: Allowed = None,
    profiles: Profiles = None,
    every: Every = 1,
    by: By = None,
    local: Local = False,
    personal: Own = False,
    threads: Threads = 1,
    workers: Workers = None,
    devices_at_once: AtOnce = 1,
    ray: RayAddress = "",
    shape: FormatOption = Format.TABLE,
    devices: Devices = None,
    alpha: Alpha = None,
    pool: Pool = None,
    size: Size = None,
    step: Step = None,
    missing_share: Missing = None,
    affected_rounds: Affected = None,
    noisy_rounds: Noisy = None,
    snr_db: Snr = None,
    labelled_share: LabelledShare = None,
    prototype_devices: Prototypes = 0,
    faults: Faults = False,
    cluster: OnCluster = False,
    secure: OfSecure = False,
    private: OfPrivate = False,
    secure_tables: OfTables = False,
    seeds: Seeds = 100,
    trace: Trace = False,
) -> None:
    """Train a fleet of virtual devices with the real method and real frames, without a broker.

    Devices are files (--data), or a data set is dealt to them (--dataset): Dirichlet pools, an evolving set
    of windows, rounds in which a modality is missing or noisy. A device's file is a recording (as the replay
    source reads it) or a window set (x/<modality>, present, quality, y).

    If a method learns from labelled windows at the coordinator, they are the task's (or --labelled), or a
    share of the data set (--labelled-share).

    Rounds end where a coordinator would end them (rounds.patience, rounds.gain).

    With --faults: the real coordinator and agents on simulated time, links and disks, under faults drawn from
    seeds; every promise is checked. Exit status 70: one was broken; the message names the seed. --cluster:
    the coordinator is two leaders and two or three ingest processes on a simulated database. --secure,
    --private: the rounds are secure, or have noise, and some devices lie; with both devices add the noise.
    """
    given = {
        "devices": devices,
        "alpha": alpha,
        "pool": pool,
        "size": size,
        "step": step,
        "missing_share": missing_share,
        "affected_rounds": affected_rounds,
        "noisy_rounds": noisy_rounds,
        "snr_db": snr_db,
        "labelled_share": labelled_share,
        "prototype_devices": prototype_devices or None,
    }
    changes = {name: value for name, value in given.items() if value is not None}
    if faults:
        from lichen_lab.simulation.deterministic import cli  # noqa: PLC0415 - the help is shown without it

        kind = world_kind(cluster=cluster, secure=secure, private=private, secure_tables=secure_tables)
        as_json = shape is Format.JSON
        cli.faults(seeds=seeds, seed=seed, workers=workers or 1, as_json=as_json, trace=trace, kind=kind)
        return
    require_one_kind(task, data, test, dataset, changes)
    if dataset is not None and (profiles or validation is not None):
        word = "--profile" if profiles else "--validation"
        raise typer.BadParameter(f"{word} goes with --data: a data set has its own devices and windows")
    if labelled is not None and dataset is not None:
        raise typer.BadParameter("--labelled goes with --data; with --dataset it is --labelled-share")
    if threads > 1 and (ray or (workers or 1) > 1):
        raise typer.BadParameter("--threads goes with one worker here: each of several has one thread")
    from lichen_lab.simulation.training import inputs as files  # noqa: PLC0415 - as above
    from models import packages  # noqa: PLC0415 - as above

    packages.permit(allow_package or ())

    options = options_of(option or [])
    if dataset is not None:
        last, share = int(changes.pop("prototype_devices", 0)), changes.pop("labelled_share", None)
        fleet = files.of_dataset(
            dataset.value,
            task,
            changes,
            rounds=rounds,
            seed=seed,
            options=options,
            prototype_devices=last,
            named=method,
            labelled_share=share,
        )
    elif task is not None and data is not None:
        from lichen_lab.simulation.training.evaluation.labelled import labelled_of  # noqa: PLC0415 - as above

        its, features = files.read_task(task, rounds, options, method)
        known = labelled_of(features, task.parent, labelled)
        fleet = files.of_files(
            its, data, test, seed, profiles or [], known=known, validation=validation, features=features
        )
    if fleet.test is None and (local or personal or by):
        word = "--by" if by else "--alone" if local else "--personal"
        raise Misconfigured(f"{word} compares on labelled windows: name them with --test")
    from lichen_lab.simulation.training.report import How, run  # noqa: PLC0415 - as above
    from models.training.evaluation import PARTS  # noqa: PLC0415 - as above

    parts = tuple(kind for kind in PARTS if kind in (by or ()))
    how = How(every, local, personal, threads, workers, devices_at_once, ray, parts)
    report = run(fleet, how)
    if shape is Format.JSON:
        typer.echo(json.dumps(report, allow_nan=False))
    else:
        from lichen_lab.simulation.training.simulated_table import show  # noqa: PLC0415 - as above

        show(report)
