"""What the agent needs of the place where a model runs: a process of its own, or the agent's."""

from typing import Any, Protocol

from numpy.typing import NDArray

from edge_agent.inference.serving.codec import MAX_BODY, Arrays, Header
from protocol.errors import LichenError

Answer = tuple[Header, dict[str, NDArray[Any]]]


class ChannelClosed(LichenError):  # noqa: N818 - reads as what happened
    """The servant has ended, or its answer is invalid: the channel is closed."""


class ModelChannel(Protocol):
    """Requests to a servant: ``channel.Channel``, or ``in_process.InProcessChannel``."""

    broken: str
    """Why the channel is closed."""

    async def ask(self, header: Header, arrays: Arrays, timeout_s: float, max_body: int = MAX_BODY) -> Answer:
        """Send one request, and return its answer.

        Args:
            header: the request.
            arrays: that go with it.
            timeout_s: a later answer closes the channel.
            max_body: larger arrays close it too, if they come from another process.

        Returns:
            Header and arrays.

        Raises:
            ChannelClosed: no answer came, or an invalid one. Cancelling the caller closes it too.
            Refused: the request is too large.
        """
        ...

    def close(self) -> None:
        """Close the channel."""
        ...


class Host(Protocol):
    """Starts servants: ``zygote_client.ZygoteClient``, or ``in_process.InProcessHost``."""

    async def channel(self) -> tuple[int | None, ModelChannel]:
        """A new servant, and its process; None if that is the agent's.

        Raises:
            Transient: no servant can be started; the message says why.
        """
        ...

    async def exit_status(self, pid: int) -> int | None:
        """How a servant's process ended: exit status, negative for a signal; None if unknown."""
        ...

    def end(self, pid: int) -> None:
        """End a servant's process in any state."""
        ...
