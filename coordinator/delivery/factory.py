"""Which deployment a coordinator has: of one bundle or of one for each route, with rollouts or without."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

import structlog

from coordinator.config.coordinator import CoordinatorSettings
from coordinator.delivery.fleet_bundle import Deploying, Deployment
from coordinator.delivery.route_bundles import RoutedDeployment
from coordinator.delivery.staged import Bundles, StagedDeployment, StagedRoutes
from coordinator.fleet.device_registry import Roster
from coordinator.fleet.serving_routes import Needs
from coordinator.messaging.sender import Post
from coordinator.rollout import releases
from coordinator.rollout.service import Rollouts
from coordinator.rounds.announcer import Announcer
from coordinator.storage.database import Store
from coordinator.trust.signer import Vouching
from models.contract import RoutedServer
from protocol.errors import Refused
from protocol.tasks.task import Task
from runtime.clock import Clock
from runtime.storage.blob_store import BlobStore

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Parts:
    """What a deployment is made of."""

    settings: CoordinatorSettings
    store: Store
    blobs: BlobStore
    post: Post
    roster: Roster
    task: Task
    clock: Clock
    vouching: Vouching
    barred: Callable[[str], Refused | None]


@dataclass(frozen=True)
class Deployed:
    """A deployment, and what carries its rollouts on; None: each export goes to all at once."""

    deployment: Deploying
    rollouts: Rollouts | None = None

    def services(self) -> dict[str, Callable[[], Awaitable[None]]]:
        """To be run."""
        return {} if self.rollouts is None else {"rollout": self.rollouts.run}

    @property
    def busy(self) -> bool:
        """Whether a rollout goes on by itself."""
        return self.rollouts is not None and self.rollouts.busy

    def told_by(self, announcer: Announcer) -> None:
        """Have it said what a rollout waits for, at each decision at once."""
        if self.rollouts is not None:
            rollouts = self.rollouts
            rollouts.changed, announcer.rollout = announcer.changed, lambda: rollouts.waiting_for

    def close(self) -> None:
        """Let the book go."""
        if self.rollouts is not None:
            self.rollouts.close()


def deployed(parts: Parts, routed: RoutedServer | None) -> Deployed:
    """As the settings say.

    Args:
        parts: of the coordinator.
        routed: the method's half, where the method is routed.

    Raises:
        Misconfigured: the book of rollouts cannot be read.
    """
    settings, store, blobs, clock = parts.settings, parts.store, parts.blobs, parts.clock
    inner: Deployment | RoutedDeployment
    if routed is None:
        inner = Deployment(store, blobs, parts.post, parts.task.name, clock, parts.vouching)
    else:
        needs, most = Needs(parts.task, routed, store, parts.roster, parts.barred), settings.export.max_routes
        inner = RoutedDeployment(needs, store, blobs, parts.post, parts.roster, clock, most, parts.vouching)
    # Who has counted decisions goes on counting, also where the book was lost: to devices a 0 is out of date.
    if not Rollouts.wanted(settings.rollout, settings.state_dir) and store.get_meta(releases.BEGUN) is None:
        return Deployed(inner)
    rollouts = Rollouts(
        settings.rollout,
        settings.state_dir,
        roster=parts.roster,
        barred=parts.barred,
        clock=clock,
        announced=partial(releases.announced, store, settings.rollout.mode),
    )
    rollouts.connected = lambda: parts.post.link.connected
    if store.get_meta(releases.BEGUN) is None:
        store.put_meta({releases.BEGUN: str(clock.wall())})
    elif rollouts.last.serial == 0:
        log.warning("rollout_book_new", why="devices keep what they run until the next rollout")
    bundles = Bundles(store, blobs, settings.state_dir, settings.keep_versions)
    if isinstance(inner, RoutedDeployment):
        return Deployed(StagedRoutes(inner, rollouts, bundles, store), rollouts)
    staged = StagedDeployment(
        inner,
        rollouts,
        bundles,
        post=parts.post,
        roster=parts.roster,
        task=parts.task.name,
        clock=clock,
        vouching=parts.vouching,
    )
    return Deployed(staged, rollouts)
