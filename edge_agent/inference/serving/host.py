"""Answers of a place where a model runs: a process of its own, or the agent's."""

from typing import Any

from numpy.typing import NDArray

from edge_agent.inference.serving.codec import Header
from protocol.errors import LichenError

Answer = tuple[Header, dict[str, NDArray[Any]]]


class ChannelClosed(LichenError):  # noqa: N818 - reads as what happened
    """The servant has ended, or its answer is invalid: the channel is closed."""
