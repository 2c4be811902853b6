"""The files of the pack, with a scrape configuration for one coordinator."""

import json
from typing import Final

from coordinator.observability.dashboards import DASHBOARDS, FOLDER

CONFIG: Final = "prometheus.yml"
RULES: Final = "alerts.yml"
JOB: Final = "lichen"
"""Job name that the alert rules expect."""


def scrape_config(fleet: str, target: str, every_s: int = 15) -> str:
    """The configuration of Prometheus, as JSON, which is YAML, too.

    Args:
        fleet: label of all series.
        target: ``host:port`` of the coordinator's metrics; add those of further processes of a cluster.
        every_s: seconds between two scrapes.
    """
    targets = {"targets": [target], "labels": {"fleet": fleet}}
    config = {
        "global": {"scrape_interval": f"{every_s}s", "evaluation_interval": f"{every_s}s"},
        "rule_files": [RULES],
        "scrape_configs": [{"job_name": JOB, "static_configs": [targets]}],
    }
    return json.dumps(config, indent=2) + "\n"


def files(fleet: str, target: str) -> dict[str, str]:
    """Name and text of each file; arguments as of :func:`scrape_config`."""
    shipped = {name: (FOLDER / name).read_text(encoding="utf-8") for name in (RULES, *DASHBOARDS)}
    return {CONFIG: scrape_config(fleet, target), **shipped}
