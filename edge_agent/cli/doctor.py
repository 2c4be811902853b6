"""``lichen agent doctor``."""

from typing import Annotated

import typer

from edge_agent.cli.options import DEFAULT_CONFIG, Config
from edge_agent.doctor.checkup import Checkup
from edge_agent.doctor.findings import Finding, status_of
from runtime import logs
from runtime.cli import Format, FormatOption, print_result
from runtime.settings.load import LogSettings

_MARKS = {"ok": ("ok  ", "green"), "warn": ("WARN", "yellow"), "fail": ("FAIL", "red")}


def doctor(
    config: Config = DEFAULT_CONFIG,
    output: FormatOption = Format.TABLE,
    *,
    user: Annotated[
        str | None,
        typer.Option(help="user whose permissions are checked; for root: lichen-agent, if it exists"),
    ] = None,
    offline: Annotated[bool, typer.Option("--offline", help="do not connect to the broker")] = False,
    timeout: Annotated[
        float, typer.Option(help="seconds for each step at the broker", min=0.5, max=60)
    ] = 5.0,
) -> None:
    """Find what would stop the agent, and say how to fix it. Changes nothing; needs no root.

    Exit status 0: nothing failed (there may be warnings); 78: the configuration is wrong; 69: something that
    is needed is missing.
    """
    logs.configure(LogSettings(level="error"))  # findings report what other modules would log
    found: list[Finding] = []
    for finding in Checkup(config, user, offline, timeout).findings():
        found.append(finding)
        if output is Format.TABLE:
            _tell(finding)
    status = status_of(found)
    counts = {level: sum(finding.level == level for finding in found) for level in _MARKS}
    told = {"config": str(config), **counts, "findings": [finding.as_json() for finding in found]}
    print_result(
        output, told, f"{counts['ok']} well, {counts['warn']} to look at, {counts['fail']} failed", indent=1
    )
    raise typer.Exit(status)


def _tell(finding: Finding) -> None:
    mark, colour = _MARKS[finding.level]
    typer.echo(f"{typer.style(mark, fg=colour)} {finding.check:22} {finding.seen}")
    if finding.todo:
        typer.echo(f"{'':5}{'':22} -> {finding.todo}")
