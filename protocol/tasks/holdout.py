"""Options of a task: which labelled windows a device evaluates versions on, instead of learning from them."""

from typing import Annotated

from pydantic import Field

from protocol.base import Wire


class Holdout(Wire):
    """Time that each device holds back from learning, to evaluate versions on the labelled windows in it.

    Devices of releases without it learn from all windows and report nothing.
    """

    share: Annotated[float, Field(ge=0, le=0.5)] = 0.0
    """Share of the time that is held back; 0: none, and learning is as without this table."""
    stretch_s: Annotated[float, Field(ge=1, le=86400)] = 60.0
    """Length of a stretch; at least twice a window and its context. Windows that reach over the end of a
    held-back stretch are used for neither."""

    def trouble(self, graph: bool, length_s: float, context_s: float | None) -> str:  # noqa: FBT001 - of a task
        """Why a task cannot have it; empty if it can.

        Args:
            graph: the task is on knowledge graphs.
            length_s: of a window.
            context_s: as ``Window.context_s``.
        """
        if not self.share:
            return ""
        if graph:
            return "holdout: devices do not evaluate models of knowledge graphs; leave it out"
        longest_s = max(length_s, context_s or 0.0)
        if self.stretch_s >= 2 * longest_s:
            return ""
        what = "a window" if context_s is None else "a window and its context"
        return f"holdout.stretch_s: under twice the {longest_s:g} s of {what}"
