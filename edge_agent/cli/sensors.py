"""``lichen agent sensors list`` and ``test``."""

import asyncio
from pathlib import Path
from typing import Annotated, Any

import typer

from edge_agent.cli.options import DEFAULT_CONFIG, Config, TaskOption, read_task_settings
from edge_agent.config.agent import AgentSettings, read_task
from edge_agent.sensors.discovery import discover
from edge_agent.sensors.source_check import check_sources
from edge_agent.sources.base import Source
from edge_agent.sources.registry import open_source
from edge_agent.tasks.task_store import TASK_FILE, read_saved_task
from protocol.errors import Misconfigured
from protocol.tasks.task import Task
from runtime import exit_codes
from runtime.cli import Format, FormatOption, fail, print_result
from runtime.clock import Clock, SystemClock

app = typer.Typer(no_args_is_help=True, help="List and test the sensors of this machine.")
Root = Annotated[Path, typer.Option(help="where the kernel shows devices; may differ inside a container")]


@app.command("list")
def list_(
    output: FormatOption = Format.TABLE,
    sysfs: Root = Path("/sys"),
    dev: Root = Path("/dev"),
    proc: Root = Path("/proc"),
) -> None:
    """List IIO devices, serial ports, cameras, microphones and kinds of other packages, with TOML to paste.

    Opens nothing, writes nothing.
    """
    every = discover(sysfs, dev, proc)
    print_result(output, every, "\n".join(_listed(every)), indent=1)


def _listed(every: dict[str, Any]) -> list[str]:
    lines = [f"IIO devices: {len(every['iio']) or 'none'}"]
    for entry in every["iio"]:
        rates = ", ".join(f"{rate:g}" for rate in entry.get("rates_hz", [])) or "not said"
        lines += ["", f"# {entry['device']} ({entry.get('id', '')}); rates in Hz: {rates}", *_pasted(entry)]
    lines += ["", f"serial ports: {len(every['serial']) or 'none'}"]
    for entry in every["serial"]:
        lines += ["", f"# {entry['is']}", *_pasted(entry)]
    for title, one in (("cameras", "camera"), ("microphones", "microphone")):
        lines += ["", f"{title}: {len(every[one]) or 'none'}"]
        for entry in every[one]:
            lines += ["", f"# {entry['name']} ({entry['device']})", *_pasted(entry)]
    lines += ["", f"kinds of other packages: {len(every['plugins']) or 'none'}"]
    for entry in every["plugins"]:
        lines += ["", f"# {entry['kind']} of {entry['package']}", *_pasted(entry)]
    lines += ["", "this machine itself:", "", *_pasted(every["system"])]
    readings = ", ".join(every["system"]["readings"])
    return [*lines, f"# readings: {readings}", "", f"kinds: {', '.join(every['kinds'])} (docs/sensors.md)"]


def _pasted(entry: dict[str, Any]) -> list[str]:
    return [f"# {entry['error']}"] if "error" in entry else str(entry["toml"]).rstrip().split("\n")


@app.command("test")
def try_(
    config: Config = DEFAULT_CONFIG,
    task_name: TaskOption = None,
    seconds: Annotated[float, typer.Option(min=0.1, max=3600, help="seconds to listen")] = 5.0,
    output: FormatOption = Format.TABLE,
) -> None:
    """Read each configured source for a while; show what it delivers and what does not fit the task.

    Exit status 78: the configuration is wrong; 69: a source failed or was silent; 65: data does not fit. Stop
    the agent first: a port has one reader.
    """
    clock = SystemClock()
    try:
        settings = read_task_settings(config, task_name)
        task = _task(settings, config)
    except Misconfigured as error:
        fail("lichen agent sensors", error, output)
    sources, broken = _open_sources(settings, config, task, clock)
    reports = asyncio.run(check_sources(sources, task, seconds, clock))
    status = _status(reports, broken)
    result = {"task": None if task is None else task.name, "sources": reports, "broken": broken}
    lines = [line for report in reports for line in _report_lines(report)] + broken
    print_result(
        output, result | {"exit_status": status}, "\n".join([*lines, _verdict(status, task)]), indent=1
    )
    raise typer.Exit(status)


def _task(settings: AgentSettings, config: Path) -> Task | None:
    """The last announced task, as the agent would use it; else that of ``task_file``."""
    announced = read_saved_task(settings.state_dir / TASK_FILE)
    if announced is not None or settings.task_file is None:
        return announced
    return read_task(settings.task_file, config)


def _open_sources(
    settings: AgentSettings, config: Path, task: Task | None, clock: Clock
) -> tuple[list[Source], list[str]]:
    """Sources, and messages for those whose table is wrong, so that the others can still be tested."""
    sources, broken = [], []
    # A source may be another task's.
    names = None if task is None or settings.tasks else task.modality_names
    for i, table in enumerate(settings.source):
        try:
            sources.append(
                open_source(table, f"{config}: source[{i}]", config.absolute().parent, names, clock)
            )
        except Misconfigured as error:
            broken.append(str(error))
    return sources, broken


def _status(reports: list[dict[str, Any]], broken: list[str]) -> int:
    if broken:
        return exit_codes.CONFIG
    if any(report["failed"] for report in reports):
        return exit_codes.UNAVAILABLE
    return exit_codes.DATAERR if any(report["misfits"] for report in reports) else exit_codes.OK


def _report_lines(report: dict[str, Any]) -> list[str]:
    lines = [report["source"]]
    for name, stats in report["modalities"].items():
        words = [f"{stats['samples']} samples"]
        if "rate_hz" in stats:
            words += [
                f"{stats['rate_hz']:g} Hz",
                f"jitter {stats['jitter_ms']:g} ms",
                f"{stats['gaps']} gaps",
            ]
            words += [f"longest step {stats['longest_gap_s']:g} s"]
        words += [f"{stats['not_finite']} not finite"] if stats["not_finite"] else []
        words += [f"{stats['size']}"] if "size" in stats else []
        words += [f"brightness {stats['brightness']:g} of 255"] if "brightness" in stats else []
        if "level_db" in stats:
            words += [f"level {stats['level_db']:g} dB, peak {stats['peak_db']:g} dB"]
            words += [f"{stats.get('delivered_hz', 0):g} samples a second"]
        if "low" in stats:
            low, high = (", ".join(f"{value:g}" for value in stats[key]) for key in ("low", "high"))
            words += [f"from ({low}) to ({high})"]
        lines.append(f"  {name}: {', '.join(words)}")
    lines += [f"  label {key} ({count} times)" for key, count in report["labels"].items()]
    lines += [f"  {key}: {value}" for key, value in report["told"].items()]
    for what in ("failed", "misfits", "doubts"):
        lines += [f"  {what}: {words}" for words in report[what]]
    return lines


def _verdict(status: int, task: Task | None) -> str:
    fits = "no task is known to compare with" if task is None else f"all fits task {task.name!r}"
    return {
        exit_codes.OK: f"all sources deliver; {fits}",
        exit_codes.UNAVAILABLE: "a source failed, or was silent",
        exit_codes.DATAERR: "data does not fit the task",
    }.get(status, "a [[source]] is wrong")
