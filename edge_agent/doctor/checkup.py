"""All checks, one group after the other; a group whose probe fails reports it, and the others go on."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from edge_agent.config.agent import AgentSettings
from edge_agent.doctor import imports
from edge_agent.doctor.checks import (
    accelerators,
    broker,
    broker_question,
    clock,
    configuration,
    confinement,
    cpu,
    disk,
    hardware,
    trust_root,
)
from edge_agent.doctor.findings import Finding, fail, warn
from edge_agent.doctor.service_account import ServiceUser, read_unit, service_user
from protocol.errors import Misconfigured
from runtime import exit_codes
from runtime.clock import SystemClock
from runtime.process.time_limit import TookTooLong, run_with_timeout

LOCAL_S: Final = 20.0
"""Limit for probes of folders, device files, clock or processor."""
ACCELERATORS_S: Final = 120.0
"""ONNX Runtime is loaded, and each provider may take a minute to find its hardware."""


@dataclass(frozen=True)
class Checkup:
    """What to check.

    Attributes:
        config: agent.toml.
        user: whose permissions count; None: the service's user for root, else one's own.
        offline: whether the broker is left out.
        limit_s: for each step of the broker check.
    """

    config: Path
    user: str | None = None
    offline: bool = False
    limit_s: float = 5.0

    def groups(self) -> dict[str, Callable[[], list[Finding]]]:
        """Name -> probe, in order; the first one reads the configuration, on which others depend."""
        found = configuration.probe(self.config)
        settings, roles = found.settings, () if found.settings is None else found.settings.roles
        looks: dict[str, Callable[[], list[Finding]]] = {
            "config": lambda: configuration.judge(found, self.config),
            "cpu": lambda: cpu.judge(run_with_timeout(LOCAL_S, cpu.probe), roles),
            "imports": lambda: imports.judge(imports.probe(imports.names(settings))),
            "clock": lambda: clock.judge(run_with_timeout(LOCAL_S, lambda: clock.probe(settings))),
        }
        if settings is None:
            return looks
        looks["trust"] = partial(self._trust, settings)
        looks["models"] = lambda: confinement.judge(confinement.probe(), settings)
        looks["accelerators"] = lambda: accelerators.judge(
            run_with_timeout(ACCELERATORS_S, lambda: accelerators.probe(settings)), settings
        )
        looks["disk"] = partial(self._disk, settings)
        looks["hardware"] = partial(self._hardware, settings)
        if not self.offline:
            looks["broker"] = partial(self._broker, settings)
        return looks

    def findings(self) -> Iterator[Finding]:
        """Run them one after the other, and yield findings as they come."""
        for name, look in self.groups().items():
            try:
                yield from look()
            except TookTooLong:
                yield warn(f"{name}.look", "no answer in time", "does a disk or a mount hang? See dmesg")
            except OSError as error:
                todo = "run this as root, or as the service's user"
                yield warn(f"{name}.look", f"could not look: {error}", todo)
            except KeyError as error:
                yield fail(f"{name}.user", f"there is no user {error}", "correct --user", exit_codes.CONFIG)
            except Misconfigured as error:
                yield fail(f"{name}.config", str(error), "correct what the message names", exit_codes.CONFIG)

    def _person(self) -> ServiceUser:
        return service_user(self.user, read_unit().groups)

    def _trust(self, settings: AgentSettings) -> list[Finding]:
        return trust_root.judge(
            trust_root.probe(settings), infers=settings.infer.enabled, wall=SystemClock().wall()
        )

    def _disk(self, settings: AgentSettings) -> list[Finding]:
        person = self._person()
        folders = run_with_timeout(LOCAL_S, lambda: disk.probe(settings, person))
        return disk.judge(folders, person, disk.secrets_of(settings))

    def _hardware(self, settings: AgentSettings) -> list[Finding]:
        person = self._person()
        nodes = run_with_timeout(LOCAL_S, lambda: hardware.probe(settings.source, person))
        return hardware.judge(nodes, person, read_unit())

    def _broker(self, settings: AgentSettings) -> list[Finding]:
        return broker.judge(broker_question.probe(settings, self.limit_s), settings, SystemClock().wall())
