"""``[secure_aggregation]`` of ``agent.toml``."""

from runtime.settings.load import Section


class SecureAggregationSettings(Section):
    """What this device asks of secure rounds (docs/secure-aggregation.md)."""

    without_identities: bool = False
    """True: it takes part in rounds whose keys are not signed by certificates. The coordinator could replace
    such keys, and read its updates."""
