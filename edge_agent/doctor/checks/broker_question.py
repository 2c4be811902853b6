"""Tests the broker under a client id of its own, and only if no running agent would lose its session.

Nothing is retained.
"""

import asyncio
import socket
import ssl
from dataclasses import replace
from pathlib import Path
from typing import Final

from edge_agent.config.agent import AgentSettings
from edge_agent.doctor.checks.broker import BrokerReply, Tls
from edge_agent.doctor.checks.running_agent import link_of
from edge_agent.identity.files import folder_of
from protocol.errors import Misconfigured, Refused, Transient
from protocol.topics import device_filters, namespace, ping_topic
from runtime.mqtt.connection import ConnectOptions
from runtime.mqtt.errors import ConnectFailed, dial_words
from runtime.mqtt.inbox import Inbox
from runtime.mqtt.link import read_password
from runtime.mqtt.session import TOPIC_ROOM, LinkCounters, Session
from runtime.mqtt.tls import tls_context
from runtime.process.time_limit import TookTooLong, run_with_timeout
from runtime.settings.load import MqttSettings

NOBODY: Final = "lichen-doctor"
"""Name of a device that does not exist: this device must not be able to write its topic. Pings have no
subscriber."""


def probe(settings: AgentSettings, limit_s: float) -> BrokerReply:
    """Look up, connect, shake hands, speak MQTT; stops at the first failure.

    Args:
        settings: of the agent.
        limit_s: for each step; all together take at most about eight times that.

    Raises:
        Misconfigured: a password or TLS file is missing or wrong.
    """
    mqtt = settings.mqtt
    try:
        found = run_with_timeout(
            limit_s, lambda: socket.getaddrinfo(mqtt.host, mqtt.port, type=socket.SOCK_STREAM)
        )
    except TookTooLong:
        return BrokerReply(reach=f"the name was not looked up in {limit_s:g} s")
    except (OSError, UnicodeError) as error:
        return BrokerReply(reach=dial_words(mqtt, error))
    asked = BrokerReply(tuple(dict.fromkeys(str(one[4][0]) for one in found)))
    try:
        socket.create_connection((mqtt.host, mqtt.port), timeout=limit_s).close()
    except OSError as error:
        return replace(asked, reach=dial_words(_short(mqtt, limit_s), error))
    if mqtt.tls is not None:
        asked = replace(asked, tls=_shake(settings, limit_s))
        if asked.tls is not None and asked.tls.trouble:
            return asked
    if (running := link_of(settings)) is not None:
        return replace(asked, running=running)
    return asyncio.run(_speak(settings, asked, limit_s))


def _shake(settings: AgentSettings, limit_s: float) -> Tls:
    mqtt, context = settings.mqtt, tls_context(settings.mqtt)
    own = _own_until(settings)
    if context is None:
        return Tls(own_until=own)
    try:
        with (
            socket.create_connection((mqtt.host, mqtt.port), timeout=limit_s) as sock,
            context.wrap_socket(sock, server_hostname=mqtt.host) as shaken,
        ):
            shown = shaken.getpeercert() or {}
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError; ValueError: not a host name
        return Tls(dial_words(_short(mqtt, limit_s), error), own_until=own)
    until = shown.get("notAfter")
    return Tls("", float(ssl.cert_time_to_seconds(until)) if isinstance(until, str) else None, own)


def _own_until(settings: AgentSettings) -> float | None:
    """Validity of the enrolled certificate, if that is the one in use."""
    tls, folder = settings.mqtt.tls, folder_of(settings.device_dir)
    if tls is None or tls.cert_file is None or Path(tls.cert_file) != folder.pair:
        return None
    try:
        identity = folder.read()
    except Misconfigured:  # reported by the checks of the configuration
        return None
    return None if identity is None else identity.not_after


def _short(mqtt: MqttSettings, limit_s: float) -> MqttSettings:
    changed = {"connect_timeout_s": limit_s, "session_expiry_s": 0, "ping_s": 0.0}
    return mqtt.model_copy(update=changed)


async def _speak(settings: AgentSettings, asked: BrokerReply, limit_s: float) -> BrokerReply:
    mqtt = settings.mqtt
    name = f"agent-{settings.fleet}-{settings.device}-doctor"
    identity = ConnectOptions(name, None, mqtt.username, read_password(mqtt), tls_context(mqtt))
    session = Session(_short(mqtt, limit_s), identity, Inbox(64), LinkCounters())
    try:
        await session.open()
        refused, own = [], ""
        for task in (None, *(one.name for one in settings.tasks)):
            space = namespace(settings.fleet, task)
            filters = [(topic, 0) for topic, _ in device_filters(space, settings.device)]
            refused += await session.subscribe(filters)
            own = own or await _publish(session, ping_topic(space, settings.device), 0, limit_s)
        chunk = 0 if own else min(mqtt.chunk_bytes, session.max_packet_bytes - TOPIC_ROOM)
        big = (
            ""
            if own
            else await _publish(session, ping_topic(settings.fleet, settings.device), chunk, limit_s)
        )
        foreign: bool | None = None
        if mqtt.protocol == "5" and not big:  # MQTT 3.1.1 has no way to refuse
            foreign = not await _publish(session, ping_topic(settings.fleet, NOBODY), 0, limit_s)
    except ConnectFailed as error:
        return replace(asked, admission=str(error))
    finally:
        await session.close()
    return replace(
        asked,
        admission="",
        limit_bytes=session.max_packet_bytes,
        chunk_trouble=big,
        refused_filters=tuple(refused),
        own_topic=own,
        foreign_topic=foreign,
    )


async def _publish(session: Session, topic: str, size: int, limit_s: float) -> str:
    """Why it was not accepted; empty: it was."""
    try:
        await session.publish(topic, bytes(size), qos=1, retain=False, timeout_s=limit_s)
    except (Refused, Transient) as error:
        return str(error)
    return ""
