"""``[cluster]``: a coordinator of several processes (docs/cluster.md)."""

from typing import Annotated

from pydantic import Field

from runtime.settings.load import Section


class ClusterSettings(Section):
    """For ``lichen coordinator lead`` and ``ingest``; ``serve`` does not use it."""

    lease_s: Annotated[float, Field(ge=1, le=60)] = 7.0
    """A leader that could not renew its lease for this long is replaced."""
    shared_subscriptions: bool = True
    """False, for a broker without them (MQTT 3.1.1): one ``ingest`` process works at a time, others wait."""
