"""``lichen coordinator init``: create the authority, our own certificates and the broker's folder, once."""

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from coordinator.config.coordinator import CoordinatorSettings
from coordinator.identity import mosquitto
from coordinator.identity.authority import Authority
from coordinator.identity.enrolment import EnrolmentAuthority, PublishedList, check_fleet
from coordinator.identity.paths import IdentityPaths
from protocol.errors import Misconfigured

_ROOTS: Final = "  The state folder is root's: is that who runs the coordinator? Else: chown -R USER, now."
_SELF: Final = ("localhost", "127.0.0.1")


@dataclass(frozen=True, slots=True)
class InitResult:
    """What ``init`` found or created."""

    created: bool
    """The authority is new."""
    desk_url: str
    broker_host: str
    ca_sha256: str
    hosts: tuple[str, ...]
    places: IdentityPaths
    published: PublishedList
    not_reloaded: mosquitto.ReloadError | None = None
    """Everything is created, but the broker was not reloaded: normal before its first start."""

    def as_json(self, settings: CoordinatorSettings) -> dict[str, Any]:
        """The same as JSON values."""
        return {
            "created": self.created,
            "fleet": settings.fleet,
            "authority": str(self.places.authority),
            "ca_sha256": self.ca_sha256,
            "hosts": list(self.hosts),
            "url": self.desk_url,
            "broker": f"{self.broker_host}:{self.places.broker.port}",
            "broker_dir": str(self.places.broker.folder),
            "broker_reloaded": self.published.reloaded,
            "error": None if self.not_reloaded is None else str(self.not_reloaded),
            "mqtt": self.mqtt(),
        }

    def mqtt(self) -> dict[str, Any]:
        """The keys for ``[mqtt]`` in ``coordinator.toml``."""
        pair = str(self.places.coordinator)
        tls = {"ca_file": str(self.places.ca), "cert_file": pair, "key_file": pair}
        return {"host": self.broker_host, "port": self.places.broker.port, "tls": tls}


def init(settings: CoordinatorSettings, hosts: Sequence[str]) -> InitResult:
    """Create what is missing; an existing authority stays as it is, except for new hosts.

    Args:
        settings: of the coordinator.
        hosts: names under which devices reach this machine; if empty, and for a new authority, this machine's
            own names.

    Raises:
        Misconfigured: the authority belongs to another fleet or is damaged, a host is not valid, or
            ``identity.enabled`` is false.
        Transient: the disk is full.
    """
    if settings.identity.enabled is False:
        raise Misconfigured(
            "identity.enabled is false; remove the key, or set it to true, and run init again"
        )
    places = IdentityPaths.of(settings)
    created = not places.authority.is_dir() or not any(places.authority.iterdir())
    if created:
        names = [*hosts, *_SELF] if hosts else own_names()
        Authority.create(places.authority, settings.fleet, names)
    elif hosts:
        authority = Authority.load(places.authority)
        check_fleet(authority, settings.fleet, places)
        authority.with_hosts([*hosts, *authority.hosts])
    with EnrolmentAuthority(settings) as desk:
        failed = None
        try:
            published = desk.publish(force=not places.broker_written, reload=not created)
        except mosquitto.ReloadError as error:
            failed, published = error, PublishedList(changed=True, reloaded=False)
        return InitResult(
            created=created,
            desk_url=desk.url,
            broker_host=desk.broker_host,
            ca_sha256=desk.authority.ca_sha256,
            hosts=desk.authority.hosts,
            places=places,
            published=published,
            not_reloaded=failed,
        )


def own_names() -> list[str]:
    """This machine's names, the best first: from the resolver, from mDNS, and its own."""
    name = socket.gethostname().lower()
    found = [name] if "." in name or name == "localhost" else [name, f"{name}.local"]
    return [*found, *_SELF]


def next_steps(made: InitResult, config: Path) -> str:
    """The next steps for the operator, as text."""
    tls = made.mqtt()["tls"]
    folder = made.places.broker.folder
    conf, included = folder / mosquitto.CONF, (folder / mosquitto.INCLUDED).parent
    lines = [
        f"The authority of the fleet {'is made' if made.created else 'is there'}: {made.places.authority}",
        "  Keep a copy of that folder where only you can read it: without it no certificate can be made.",
        f"The broker's files: {folder}",
        f"  a Mosquitto of its own:   mosquitto -c {conf}",
        f"  Debian's service:         include_dir {included}   (a line in /etc/mosquitto/mosquitto.conf)",
        *([_ROOTS] if made.places.state_dir.stat().st_uid == 0 else []),
        "  Started as root, either becomes the user mosquitto, who must be able to read them: set [identity]",
        "  broker_dir and broker_group (docs/identity.md), and init again.",
        f"In {config}:",
        "  [mqtt]",
        f'  host = "{made.broker_host}"',
        f"  port = {made.places.broker.port}",
        "  [mqtt.tls]",
        *(f'  {key} = "{value}"' for key, value in tls.items()),
        f"(Re)start the coordinator: devices enrol at {made.desk_url} while it runs. For each of them:",
        f"  lichen device invite NAME --config {config}",
    ]
    return "\n".join(lines)
