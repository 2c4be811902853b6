"""The global state that one local round works on: what is on the device's route through a version."""

import asyncio
from collections.abc import Callable

from edge_agent.training.model_blobs import Versions
from edge_agent.windows.workspace import windows_of
from models import registry
from models.contract import Blobs, ClientContext, Profile, Tensors
from models.materials import Material
from protocol.errors import LichenError, Reason, Refused
from protocol.messages import Offer


class Routes:
    """Pulls what this device's route through a version has, and no other blob.

    Args:
        versions: pulls blobs.
        say: told what is being done, and the seconds it may take.
        timeout_s: of a fetch.
    """

    def __init__(self, versions: Versions, say: Callable[[str, float], None], timeout_s: float) -> None:
        self._versions = versions
        self._say = say
        self._timeout_s = timeout_s
        self.last: tuple[str, ...] = ()
        """Names of the blobs of the newest route, for status."""

    async def state(self, offer: Offer, context: ClientContext, data: Material, private: Tensors) -> Blobs:
        """The offer's base on the route of ``context.profile``; a routed method's router chooses it.

        Where a method keeps parts of its state for one device each, this device's own are on its route, where
        the version has them (a new device's are not there yet).

        Raises:
            Transient: something was not here in time.
            Refused: something is not what its digest or its name says, or the router cannot use it.
        """
        self._say(f"fetching version {offer.base[:12]} for round {offer.round}", self._timeout_s)
        task, profile = context.task, context.profile or Profile(())
        spec = registry.method(task.method)
        if not spec.routed:
            own = tuple(f"{part}/{context.device}" for part in spec.owned)
            state = await self._versions.state(offer, spec.server().route(task, profile), own=own)
        else:
            router, windows = spec.router(), windows_of(data)

            async def choose(first: Blobs) -> tuple[str, ...]:
                try:
                    return await asyncio.to_thread(router.choose, context, windows, first, private)
                except LichenError:
                    raise
                except (ArithmeticError, LookupError, TypeError, ValueError) as error:  # of what was sent
                    raise Refused(
                        Reason.WRONG_TENSORS,
                        f"version {offer.base[:12]}: the router of method {task.method!r} cannot use "
                        f"{', '.join(first)}: {type(error).__name__}: {error}"[:500],
                    ) from None

            state = await self._versions.chosen(offer, router.first(task, profile), choose)
        self.last = tuple(sorted(state))
        return state
