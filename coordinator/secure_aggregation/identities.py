"""The authority whose certificates the devices of a secure round must have."""

from coordinator.config.coordinator import CoordinatorSettings
from protocol.errors import Misconfigured
from protocol.secure_aggregation.credentials import KeyAuthority, authority_of
from protocol.tasks.folding import SecureAggregation


def authority_for(settings: CoordinatorSettings, options: SecureAggregation) -> KeyAuthority | None:
    """The fleet's authority; None where the task wants no identities.

    Raises:
        Misconfigured: the task wants them, and the fleet has none.
    """
    if options.identities == "none":
        return None
    # imports cryptography: only where the task wants identities
    from coordinator.identity.paths import IdentityPaths  # noqa: PLC0415

    file = IdentityPaths.of(settings).ca
    try:
        return authority_of(file.read_bytes())
    except FileNotFoundError:
        raise Misconfigured(
            f"{file} is not there: secure_aggregation wants devices with certificates. Make the fleet's "
            'authority (lichen coordinator init), or write [secure_aggregation] identities = "none": then '
            "the coordinator could replace the keys of devices"
        ) from None
