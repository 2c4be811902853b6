"""Makes the service of secure rounds from a coordinator's settings."""

from collections.abc import Callable
from pathlib import Path

from coordinator.aggregation.secure.attempt_file import AttemptFile
from coordinator.aggregation.secure.opening import SumOpener
from coordinator.aggregation.secure.reports import SecureReports
from coordinator.aggregation.secure.rounds import SecureRounds
from coordinator.config.coordinator import CoordinatorSettings
from coordinator.round_machine.events import RoundState
from coordinator.secure_aggregation.identities import authority_for
from coordinator.storage.database import Database
from models.contract import Server
from models.privacy.shared_noise import shared_noise
from protocol.tasks.task import Task
from runtime.clock import Clock
from runtime.mqtt.running_link import MessagePublisher


def secure_rounds_of(
    settings: CoordinatorSettings,
    task: Task,
    server: Server,
    folder: Path,
    *,
    rounds: Callable[[], RoundState],
    now: Callable[[], float],
    link: MessagePublisher,
    clock: Clock,
    store: Database,
) -> SecureRounds | None:
    """The service; None: the task's updates are plain.

    Args:
        settings: of the coordinator.
        task: what is learned.
        server: the method's server half.
        folder: of the state.
        rounds: the round machine's state.
        now: seconds on its time line.
        link: publishes.
        clock: of pauses.
        store: gets reports on attempts.

    Raises:
        Misconfigured: the task wants identities, and the fleet has none.
    """
    options = task.secure_aggregation
    if options is None:
        return None
    authority = authority_for(settings, options)
    return SecureRounds(
        options=options,
        opener=SumOpener(task, options, server),
        file=AttemptFile(folder, options, authority),
        rounds=rounds,
        task=task.name,
        fleet=settings.fleet,
        authority=authority,
        link=link,
        clock=clock,
        now=now,
        noise=shared_noise(task),
        reports=SecureReports(store),
    )
