"""The identity of ``lichen status`` at a broker that knows its clients by their certificates.

The broker that ``lichen coordinator init`` configures uses the certificate's name as client id. With the
coordinator's own certificate, ``lichen status`` would take over its session and disconnect it.
"""

from typing import Final

from protocol.errors import Misconfigured
from runtime.settings.load import MqttSettings, TlsSettings

_OBSERVER: Final = "observer.pem"
_DEVICE: Final = "identity.json"


def as_onlooker(broker: MqttSettings) -> MqttSettings:
    """The same broker, with the observer's certificate if there is one, which may read the fleet's topics.

    Raises:
        Misconfigured: the configuration is an enrolled device's.
    """
    tls = broker.tls
    if tls is None or tls.cert_file is None:
        return broker
    if tls.cert_file.with_name(_DEVICE).is_file():
        raise Misconfigured(
            "mqtt.tls.cert_file: with a device's certificate only that device's own topics can be read; "
            "use lichen agent status here, or lichen status with the coordinator's configuration"
        )
    observer = tls.cert_file.with_name(_OBSERVER)
    if not observer.is_file():
        return broker
    look = TlsSettings(ca_file=tls.ca_file, cert_file=observer, key_file=observer)
    return broker.model_copy(update={"tls": look})
