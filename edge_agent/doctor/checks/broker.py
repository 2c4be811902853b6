"""The broker from this device: name, port, TLS, admission, access list, packet limit."""

import ipaddress
from dataclasses import dataclass, field
from typing import Final

from edge_agent.config.agent import AgentSettings
from edge_agent.doctor.findings import Finding, fail, ok, warn
from runtime import exit_codes
from runtime.mqtt.tls import utc

SOON_S: Final = 14 * 86400.0
"""A certificate that expires within this time gets a warning."""
_LEFT: Final = "not asked, because of what is said above"


@dataclass(frozen=True)
class Tls:
    """Attributes: ``trouble``: the error, empty if there is none; until when each certificate is valid."""

    trouble: str = ""
    broker_until: float | None = None
    own_until: float | None = None


@dataclass(frozen=True)
class BrokerReply:
    """The broker's answers.

    Attributes:
        addresses: of the host; empty: the name is unknown.
        reach: why there is no TCP connection; empty: there is one.
        tls: None: not configured, or not reached.
        admission: why CONNECT failed; empty: it was accepted; None: not tried.
        limit_bytes: the packet limit in force.
        chunk_trouble: why a chunk of the configured size failed; empty: it arrived.
        refused_filters: of those that the agent subscribes to.
        own_topic: why the device may not write on its own topic; empty: it may.
        foreign_topic: whether it may write on another device's topic; None: unknown.
        running: the running agent's report on its link, if it was used instead; None: it was not.
    """

    addresses: tuple[str, ...] = ()
    reach: str = ""
    tls: Tls | None = None
    admission: str | None = None
    limit_bytes: int = 0
    chunk_trouble: str = ""
    refused_filters: tuple[str, ...] = field(default=())
    own_topic: str = ""
    foreign_topic: bool | None = None
    running: str | None = None


def judge(asked: BrokerReply, settings: AgentSettings, now: float) -> list[Finding]:
    """Findings in the order in which a connection is made; what was not tried is named as such.

    Args:
        asked: the answers.
        settings: of the agent.
        now: Unix seconds.
    """
    where = settings.mqtt.where
    if not asked.addresses:
        todo = "correct mqtt.host, or see whether this machine has a name server (resolvectl status)"
        return [fail("broker.reach", f"{where}: {asked.reach or 'the host name is not known'}", todo)]
    if asked.reach:
        todo = (
            "is the broker running, and its port open to this machine (mqtt.host, mqtt.port)? The agent waits"
        )
        return [fail("broker.reach", asked.reach, todo)]
    found = [ok("broker.reach", f"{where} answers ({asked.addresses[0]})")]
    found += _tls(asked, settings, now)
    if asked.running is not None:
        return [*found, _of_the_agent(asked.running)]
    if asked.admission is None:
        return found
    if asked.admission:
        todo = "compare mqtt.username, mqtt.password_file, [mqtt.tls] and fleet with what the operator set up"
        return [*found, fail("broker.admission", asked.admission, todo)]
    return [
        *found,
        ok("broker.admission", "lets this device in"),
        *_access(asked, settings),
        _packets(asked, settings),
    ]


def _of_the_agent(words: str) -> Finding:
    check = "broker.admission"
    seen = (
        f"the agent that runs here says: {words}; the doctor did not connect, for the broker takes one "
        "connection for each certificate"
    )
    if words.startswith("connected"):
        return ok(check, seen)
    return warn(check, seen, "lichen agent status --why says more; stop the agent to have the broker asked")


def _tls(asked: BrokerReply, settings: AgentSettings, now: float) -> list[Finding]:
    check = "broker.tls"
    if settings.mqtt.tls is None:
        if is_loopback(asked.addresses):
            return [ok(check, "no [mqtt.tls]; the broker is on this machine")]
        todo = "enrol this device (lichen agent enroll), or set [mqtt.tls]"
        return [warn(check, "no [mqtt.tls]: whoever is on the way reads all and can pose as anybody", todo)]
    if asked.tls is None:
        return [warn(check, _LEFT, "mend that first")]
    if asked.tls.trouble:
        todo = (
            "ca_file must hold the authority that signed the broker's certificate, and mqtt.host a name in it"
        )
        return [fail(check, asked.tls.trouble, todo)]
    certificates = {
        "the broker's": (asked.tls.broker_until, "its operator must renew it"),
        "this device's": (asked.tls.own_until, "see certificate in lichen agent status; or enrol again"),
    }
    late = []
    for whose, (until, todo) in certificates.items():
        if until is not None and until < now:
            late.append(fail(check, f"{whose} certificate ran out at {utc(until)}", todo))
        elif until is not None and until < now + SOON_S:
            late.append(warn(check, f"{whose} certificate holds only until {utc(until)}", todo))
    until = asked.tls.broker_until
    return late or [ok(check, "chain and host name are right" + (f", until {utc(until)}" if until else ""))]


def _access(asked: BrokerReply, settings: AgentSettings) -> list[Finding]:
    check = "broker.acl"
    found: list[Finding] = []
    name = f"fleet {settings.fleet}, device {settings.device}"
    todo = "correct fleet and device, or the broker's access list (docs/identity.md has one)"
    found += [
        fail(check, f"the subscription is refused: {words} ({name})", todo) for words in asked.refused_filters
    ]
    if asked.own_topic:
        found.append(
            fail(check, f"this device may not write on its own topics: {asked.own_topic} ({name})", todo)
        )
    if found:
        return found
    if asked.foreign_topic:
        seen = "this device may write on another device's topics: who has one device can pose as all"
        todo = "give the broker an access list; lichen coordinator init writes Mosquitto's (docs/identity.md)"
        local = is_loopback(asked.addresses)
        return [ok(check, f"{seen}; the broker is on this machine") if local else warn(check, seen, todo)]
    if asked.foreign_topic is None:
        return [
            ok(check, "its own topics are open; over MQTT 3.1.1 nobody can tell whether others' are, too")
        ]
    return [ok(check, "its own topics are open to it, and another device's are not")]


def _packets(asked: BrokerReply, settings: AgentSettings) -> Finding:
    check, chunk = "broker.packets", settings.mqtt.chunk_bytes
    if asked.own_topic:
        return warn(check, _LEFT, "mend that first")
    if asked.chunk_trouble:
        return fail(
            check,
            f"a message of {chunk} bytes (mqtt.chunk_bytes) does not pass: {asked.chunk_trouble}",
            "raise the broker's limit (Mosquitto: max_packet_size), or lower mqtt.chunk_bytes",
            exit_codes.CONFIG,
        )
    if asked.limit_bytes < chunk:
        todo = (
            "raise the broker's limit for fewer messages, or leave it: lichen sends smaller chunks by itself"
        )
        return warn(
            check, f"packets of at most {asked.limit_bytes} bytes, below mqtt.chunk_bytes ({chunk})", todo
        )
    return ok(
        check, f"a message of {chunk} bytes passes; packets of at most {asked.limit_bytes} bytes are sent"
    )


def is_loopback(addresses: tuple[str, ...]) -> bool:
    """Whether the name leads to this machine alone."""
    return all(ipaddress.ip_address(one.partition("%")[0]).is_loopback for one in addresses)
