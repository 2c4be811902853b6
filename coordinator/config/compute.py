"""``[compute]`` of ``coordinator.toml``: where the slow work of rounds runs."""

from typing import Annotated

from pydantic import Field

from runtime.settings.load import Section


class ComputeSettings(Section):
    """A Ray cluster for folding, viewing, training, evaluation and export (docs/ray.md)."""

    ray: Annotated[str, Field(pattern=r"^(|local|auto|[^\s/:]{1,253}:[0-9]{1,5})$")] = ""
    """Empty: child processes on this machine. ``local``: a cluster of this machine, while it is needed.
    ``auto``: the cluster that this machine belongs to. ``HOST:PORT``: the address of its head."""
    fallback: bool = False
    """While the cluster cannot be reached: work in child processes; otherwise the round waits for it."""
    updates_a_task: Annotated[int, Field(ge=1, le=65536)] = 256
    timeout_s: Annotated[float, Field(gt=0, le=7 * 86400)] = 3600.0
    """Limit of one job on the cluster, with its wait for free CPUs."""
