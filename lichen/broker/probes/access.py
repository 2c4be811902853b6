"""The access list: what a client without credentials, and one with those of a device, may do."""

from uuid import uuid4

from lichen.broker.client import ProbeClient
from lichen.broker.client_types import NoAnswer
from lichen.broker.facts import AccessFacts
from lichen.broker.lab import Lab
from protocol.topics import ping_topic
from runtime.settings.load import MqttSettings

_NOBODY = "lichen-check-nobody"


def access(lab: Lab) -> AccessFacts:
    """Try both; messages are empty and go to topics of pings, to which no daemon subscribes.

    Raises:
        NoAnswer: the broker did not answer.
    """
    nameless = _nameless(lab)
    if lab.device is None:
        return AccessFacts(nameless)
    own, foreign, broadcast = (
        ping_topic(lab.fleet, lab.device_name),
        ping_topic(lab.fleet, _NOBODY),
        ping_topic(lab.fleet),
    )
    with lab.client("guard") as guard:
        guard.subscribe(own, foreign, broadcast)
        mark = uuid4().bytes
        try:
            name = f"agent-{lab.fleet}-{lab.device_name}-doctor"
            for topic in (broadcast, foreign, own):  # a refusal may end the connection
                with ProbeClient(lab.device, lab.device_password, name) as device:
                    device.connect()
                    device.wait_acks([device.send(topic, mark)])
        except NoAnswer as error:
            return AccessFacts(nameless, str(error))
        came = {m.topic for m in guard.received(3, 2.0, quiet_s=1.0) if m.payload == mark}
    return AccessFacts(nameless, "", broadcast in came, foreign in came, own in came)


def _nameless(lab: Lab) -> bool:
    """Whether a client without user name and certificate is let in."""
    settings = lab.settings
    if settings.username is None and (settings.tls is None or settings.tls.cert_file is None):
        return True
    tls = (
        None
        if settings.tls is None
        else settings.tls.model_copy(update={"cert_file": None, "key_file": None})
    )
    bare = MqttSettings.model_validate(
        settings.model_dump() | {"username": None, "password_file": None, "tls": tls and tls.model_dump()}
    )
    try:
        with ProbeClient(bare, None, f"check-{lab.run}-nameless") as client:
            client.connect()
    except NoAnswer:
        return False
    return True
