"""Predictions from a broker: paho's network thread, which reconnects by itself."""

import secrets
from collections.abc import Callable
from typing import Any, Final

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.reasoncodes import ReasonCode

from lichen.client.prediction import Prediction, parse

_NOT_ALLOWED: Final = (134, 135)
"""Reason codes of MQTT 5: bad user name or password, not authorized. paho maps those of 3.1.1 to these."""
_OTHER_PROTOCOL: Final = 132


class Listening:
    """One subscription, without end. ``put`` and ``fail`` are called in a thread of its own."""

    def __init__(
        self,
        host: str,
        port: int,
        topic: str,
        put: Callable[[Prediction | None], None],
        fail: Callable[[Exception], None],
        *,
        protocol: str,
        username: str | None,
        password: str | None,
        tls: bool,
        ca_file: str | None,
    ) -> None:
        self._where, self._topic = f"{host}:{port}", f"{topic}/prediction"
        self._put, self._fail = put, fail
        self.state = f"connecting to {self._where}"
        mqtt5 = protocol == "5"
        client = paho.Client(
            CallbackAPIVersion.VERSION2,
            f"lichen-client-{secrets.token_hex(6)}",
            protocol=paho.MQTTv5 if mqtt5 else paho.MQTTv311,
        )
        client.username_pw_set(username, password)
        if tls:
            client.tls_set(ca_file)
        client.reconnect_delay_set(1, 10)
        client.on_connect = self._on_connect
        client.on_connect_fail = self._on_connect_fail
        client.on_disconnect = self._on_disconnect
        client.on_message = self._on_message
        self._client = client
        # Clean at each connect and with a client id: some brokers accept an empty id once, and no more.
        clean = True if mqtt5 else paho.MQTT_CLEAN_START_FIRST_ONLY
        client.connect_async(host, port, keepalive=30, clean_start=clean)
        client.loop_start()

    def close(self) -> None:
        """Disconnect, and end the thread."""
        self._client.disconnect()
        self._client.loop_stop()

    def _on_connect(self, client: paho.Client, _u: Any, _f: Any, reason: ReasonCode, _p: Any) -> None:
        if reason.is_failure:
            self.state = f"the broker at {self._where} refuses us: {reason}"
            if reason.value in _NOT_ALLOWED:
                self._fail(PermissionError(self.state))
            elif reason.value == _OTHER_PROTOCOL:
                self._fail(ConnectionRefusedError(f"{self.state}; try another protocol"))
            return
        self.state = f"listens on {self._topic} at {self._where}"
        client.subscribe(self._topic, qos=1)

    def _on_connect_fail(self, _c: Any, _u: Any) -> None:
        self.state = f"the broker at {self._where} does not answer; retrying"

    def _on_disconnect(self, _c: Any, _u: Any, _f: Any, reason: ReasonCode, _p: Any) -> None:
        if not self.state.startswith("the broker"):
            self.state = f"the connection to {self._where} ended ({reason}); retrying"

    def _on_message(self, _c: Any, _u: Any, message: paho.MQTTMessage) -> None:
        if not message.payload:
            return  # a retained prediction that was cleared
        try:
            source = message.topic.rpartition("/")[0]
            self._put(parse(bytes(message.payload), source, retained=message.retain))
        except ValueError:  # UnicodeDecodeError, too
            self._put(None)
