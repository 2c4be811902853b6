"""What one local round works on: the device's windows and profile, and the global state on its route."""

import asyncio
from collections.abc import Callable

from edge_agent.collect import Workspace
from edge_agent.profile import follows_windows, is_readable, is_useful, narrowed, shown_in
from edge_agent.rows import has_label
from edge_agent.versions import Versions
from models import registry
from models.contract import Blobs, ClientContext, Profile, Tensors, WindowSet
from protocol.errors import LichenError, Reason, Refused, Transient
from protocol.messages import Offer


def material(work: Workspace, limit: int, *, labelled: bool) -> tuple[Profile, WindowSet]:
    """The newest windows to learn from, and what they show of the device's profile. Touches the disk.

    Args:
        work: the task, and what this device may read and predict.
        limit: at most so many windows.
        labelled: only those with a class of ``label``; else all that have something to read. Not looked at
            where the profile follows the windows: then those are taken that have anything to read and a label
            of any target.

    Raises:
        Transient: there is none, or the store cannot be read now.
    """
    task, may = work.task, work.allowed
    if not follows_windows(task):
        wanted = has_label if labelled else is_readable(task, may)
        windows, profile = work.store.recent(limit, wanted=wanted), Profile(may.modalities)
    else:
        windows = work.store.recent(limit, wanted=is_useful(task, may))
        if not len(windows):
            raise Transient("no window in the store has something to read and a label of a target")
        profile = shown_in(task, may, windows)
    return profile, narrowed(task, profile, windows)


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

    async def state(
        self, offer: Offer, context: ClientContext, windows: WindowSet, private: Tensors
    ) -> Blobs:
        """The offer's base on the route of ``context.profile``; a routed method's router chooses it.

        Raises:
            Transient: something was not here in time.
            Refused: something is not what its digest or its name says, or the router cannot use it.
        """
        self._say(f"fetching version {offer.base[:12]} for round {offer.round}", self._timeout_s)
        task, profile = context.task, context.profile or Profile(())
        spec = registry.method(task.method)
        if not spec.routed:
            state = await self._versions.state(offer, spec.server().route(task, profile))
        else:
            router = spec.router()

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
