"""Where a model runs: what the agent needs of it, whether that is a process of its own or the agent's."""

from typing import Any, Protocol

from numpy.typing import NDArray

from edge_agent.inference.serving.codec import MAX_BODY, Arrays, Header
from protocol.errors import LichenError

Answer = tuple[Header, dict[str, NDArray[Any]]]


class Broken(LichenError):  # noqa: N818 - reads as what happened
    """The servant has gone, or what it says makes no sense: the channel is closed."""


class ModelChannel(Protocol):
    """A servant, as one asks it: ``channel.Channel``, or ``within.Direct``."""

    broken: str
    """Why nothing can be asked any more, in words."""

    async def ask(self, header: Header, arrays: Arrays, timeout_s: float, max_body: int = MAX_BODY) -> Answer:
        """One question, one answer.

        Args:
            header: what is asked.
            arrays: that go with it.
            timeout_s: no answer after so long breaks it.
            max_body: larger arrays than these break it too, where they come from another process.

        Returns:
            Header and arrays.

        Raises:
            Broken: no answer came, or none that can be read. A caller that is cancelled breaks it too.
            Refused: the question is too large to be asked.
        """
        ...

    def close(self) -> None:
        """Nothing more is asked."""
        ...


class Host(Protocol):
    """Gives servants: ``parent.Zygote``, or ``within.Within``."""

    async def channel(self) -> tuple[int | None, ModelChannel]:
        """A new servant, and its process; None where that is the agent's.

        Raises:
            Transient: there is none to be had, in words.
        """
        ...

    async def fate(self, pid: int) -> int | None:
        """How a servant's process ended: exit status, negative for a signal; None where nobody knows."""
        ...

    def end(self, pid: int) -> None:
        """End a servant's process, whatever it does."""
        ...
