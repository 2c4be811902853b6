"""``lichen coordinator monitoring``: the files for Prometheus and Grafana."""

from pathlib import Path
from typing import Annotated

import typer

from coordinator.cli.options import Config
from coordinator.config.coordinator import load_settings
from coordinator.observability import scrape
from protocol.errors import Misconfigured
from runtime.cli import Format, FormatOption, print_result
from runtime.storage.files import disk_errors, write_atomic


def monitoring(
    folder: Annotated[Path, typer.Argument(help="empty or missing folder for the files")],
    config: Config,
    fmt: FormatOption = Format.TABLE,
) -> None:
    """Write a scrape configuration and alert rules for Prometheus, and dashboards for Grafana."""
    settings = load_settings(config)
    metrics = settings.metrics
    if not metrics.prometheus_port:
        raise Misconfigured(
            f"{config}: metrics.prometheus_port is 0: set a port, such as 9464, and restart the coordinator"
        )
    found = scrape.files(settings.fleet, f"{metrics.address}:{metrics.prometheus_port}")
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    for name, text in found.items():
        if (folder / name).exists() and (folder / name).read_text(encoding="utf-8") != text:
            raise Misconfigured(f"{folder / name} is there already and differs: choose another folder")
        write_atomic(folder / name, text.encode())
    words = f"{folder}: {', '.join(found)}. Start: prometheus --config.file={folder / scrape.CONFIG}"
    print_result(fmt, {"folder": str(folder), "files": list(found)}, words)
