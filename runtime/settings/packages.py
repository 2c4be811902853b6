"""``[packages]``: the Python packages that a task may use on this machine."""

from typing import Annotated

from pydantic import Field

from runtime.settings.load import Section

PackageName = Annotated[str, Field(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,62}[A-Za-z0-9])?$")]


class PackagesSettings(Section):
    """The decision of this machine's owner; a task can only choose among these."""

    allow: Annotated[tuple[PackageName, ...], Field(max_length=64)] = ()
    """Distributions whose code the training process may import, if a task names their version and hash."""
