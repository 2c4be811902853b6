"""Puts the part together that says task, round and offers."""

from typing import TYPE_CHECKING

from coordinator.messaging.sender import Post
from coordinator.rounds.announcer import Announcer
from coordinator.storage.model_registry import Registry
from coordinator.trust.work_signer import WorkSigner

if TYPE_CHECKING:
    from coordinator.app import Coordinator


def announcer(app: "Coordinator", post: Post, registry: Registry) -> Announcer:
    """Of this coordinator."""
    return Announcer(
        post=post,
        store=app.store,
        roster=app.roster,
        registry=registry,
        deployment=app.deployment,
        traffic=app.traffic,
        graphs=app.graphs,
        signer=WorkSigner(app.vouching, app.store, app.clock),
        clock=app.clock,
        offer_every_s=app.settings.offer_every_s,
    )
