"""Access without a sign-in: whoever reaches the loopback address may view, and nothing else."""

from collections.abc import Sequence

from starlette.requests import HTTPConnection
from starlette.routing import BaseRoute

from console.ports import Role, Viewer
from runtime.web.server import is_loopback


class LoopbackViewers:
    """Every request from this machine is a viewer's."""

    routes: Sequence[BaseRoute] = ()
    sign_in = "/"

    async def who(self, request: HTTPConnection) -> Viewer | None:
        """See :class:`console.ports.Access`."""
        peer = request.client
        return Viewer("loopback", Role.VIEWER) if peer is not None and is_loopback(peer.host) else None
