"""Configuration of a Mosquitto broker that limits each device to its own name and topics.

The folder holds ``mosquitto.conf`` (for a broker of its own), ``conf.d/lichen.conf`` (the same, to be
included by an existing configuration), ``acl``, ``crl.pem``, ``ca.crt`` and ``server.pem`` (certificate and
key in one file, so that a reload never reads half of a new pair).

The TLS handshake proves the certificate's key; ``use_identity_as_username`` makes its common name the user;
``use_username_as_clientid`` makes it the client id too, so that no device takes over another's session and
queue; the patterns of the access list give a user its own topics. A revoked certificate fails at the
handshake (``crlfile``); on a connection that was open before, the access list denies everything. Mosquitto
2.0 answers every SUBSCRIBE with success and applies the list to each message instead.
"""

import contextlib
import grp
import os
import stat
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from coordinator.identity.authority import OBSERVER_NAME
from protocol.enrolment import coordinator_name
from protocol.errors import Misconfigured, Transient
from protocol.topics import namespace
from runtime.storage.files import disk_errors, sync_folder

CONF: Final = "mosquitto.conf"
INCLUDED: Final = "conf.d/lichen.conf"
ACL: Final = "acl"
CRL: Final = "crl.pem"
CA: Final = "ca.crt"
SERVER: Final = "server.pem"
DATA: Final = "data"
MAX_PACKET_BYTES: Final = 1024 * 1024
MAX_QUEUED_BYTES: Final = 256 * 1024 * 1024
_RELOAD_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Broker:
    """Where the broker's files are and where it listens.

    Args:
        folder: absolute; all paths in the configuration are below it.
        fleet: name of the fleet in the topics.
        port: of the TLS listener.
        address: the one address it listens on; empty: all.
        group: the broker's group, which may read the files; empty: only their owner.
        user: the user that Mosquitto changes to when root starts it; empty: its default.
        tasks: names of the fleet's further tasks.
    """

    folder: Path
    fleet: str
    port: int = 8883
    address: str = ""
    group: str = ""
    user: str = ""
    tasks: tuple[str, ...] = ()


def render_conf(broker: Broker, *, included: bool = False) -> str:
    """The configuration; ``included`` leaves out the settings that only the including file may hold."""
    here = broker.folder
    own = [f"persistence_location {here / DATA}/"] + ([f"user {broker.user}"] if broker.user else [])
    return "\n".join(
        [
            "# Written by lichen; changes are overwritten.",
            f"listener {broker.port} {broker.address}".rstrip(),
            f"cafile {here / CA}",
            f"certfile {here / SERVER}",
            f"keyfile {here / SERVER}",
            f"crlfile {here / CRL}",
            "tls_version tlsv1.2",  # the lowest version that is accepted
            "require_certificate true",
            "use_identity_as_username true",
            "use_username_as_clientid true",
            "allow_anonymous false",
            f"acl_file {here / ACL}",
            "# The default of 1000 queued messages drops the rest of a burst after its PUBACK.",
            "max_queued_messages 0",
            f"max_queued_bytes {MAX_QUEUED_BYTES}",
            f"max_packet_size {MAX_PACKET_BYTES}",
            "# Sessions and what they have queued survive a restart, all but the last seconds a power cut.",
            "persistence true",
            "autosave_interval 5",
            "persistent_client_expiration 14d",
            *([] if included else own),
            "",
        ]
    )


def render_acl(fleet: str, barred: Iterable[str] = (), tasks: Sequence[str] = ()) -> str:
    """The access list.

    Args:
        fleet: name of the fleet in the topics.
        barred: revoked devices: they are denied everything, also on open connections.
        tasks: names of the fleet's further tasks: each has its topics, and a coordinator's link of its own.
    """
    names = (None, *tasks)
    roots = [f"lichen/v1/{namespace(fleet, task)}" for task in names]
    lines = [
        "# Written by lichen; changes are overwritten. Who is not named, and fits no pattern, gets nothing."
    ]
    for root, task in zip(roots, names, strict=True):
        lines += [
            f"user {coordinator_name(task)}",
            f"topic read {root}/d/+/up/#",
            f"topic write {root}/d/+/down/#",
            f"topic write {root}/b/#",
            "",
        ]
    lines.append(f"user {OBSERVER_NAME}")
    for root in roots:
        lines += [f"topic read {root}/d/+/{tail}" for tail in ("up/state", "up/metric", "down/receipt")]
    lines.append("")
    for device in sorted(set(barred)):
        # Mosquitto checks denials first, and a user's own lines before the patterns.
        lines += [f"user {device}", "topic deny #", ""]
    # In all tasks, also those that are not there: a device may be told of one before the coordinator, or keep
    # it for longer, and Mosquitto 2.0 ends a connection that publishes what is denied.
    lines += [
        "# %u is the common name of the certificate; + is the fleet, or one of its tasks.",
        "pattern write lichen/v1/+/d/%u/up/#",
        "pattern write lichen/v1/+/d/%u/ping",
        "pattern read lichen/v1/+/d/%u/down/#",
        "pattern read lichen/v1/+/b/#",
    ]
    return "\n".join([*lines, ""])


def write_server(broker: Broker, ca_pem: str, both_pem: bytes) -> None:
    """Write the broker's certificate with its key, and the authority's certificate.

    Raises:
        Misconfigured: the folder denies access, or the group does not exist.
        Transient: the disk is full.
    """
    _place(broker, SERVER, both_pem)
    _place(broker, CA, ca_pem.encode())


def write_rules(broker: Broker, barred: Iterable[str], crl_pem: bytes) -> None:
    """Write configuration, access list and revocation list, each replaced whole.

    The broker must reload afterwards.

    Raises:
        Misconfigured: the folder denies access, or the group does not exist.
        Transient: the disk is full.
    """
    with disk_errors(broker.folder):
        _folder(broker, broker.folder, 0o750 if broker.group else 0o700)
        _folder(broker, broker.folder / DATA, 0o770 if broker.group else 0o700)
    _place(broker, CRL, crl_pem)
    _place(broker, ACL, render_acl(broker.fleet, barred, broker.tasks).encode())
    _place(broker, INCLUDED, render_conf(broker, included=True).encode())
    _place(broker, CONF, render_conf(broker).encode())


class ReloadError(Transient):
    """The broker's files are written, but the operator's reload command did not make it read them."""


def unproven(command: Sequence[str], words: str) -> ReloadError:
    """The command succeeded, but the broker does not use its files; ``words`` say what it does."""
    return ReloadError(
        f"identity.reload_command ({' '.join(command)}) ended well, but nothing shows that the broker acts "
        f"on its files: {words}; does the command reload the broker there, and is {CRL} its crlfile?"
    )


def reload(command: Sequence[str]) -> None:
    """Run the operator's command that makes the broker read its files again (SIGHUP).

    Raises:
        ReloadError: it failed or timed out; the message says what to do.
    """
    words = " ".join(command)
    what = "until the broker reloads, it still lets revoked devices in"
    try:
        done = subprocess.run(
            list(command),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_RELOAD_S,
            check=False,
            text=True,
            errors="replace",
            # If root acts as the owner of the state folder, the command runs as root again.
            user=os.getuid() if os.geteuid() != os.getuid() else None,
            group=os.getgid() if os.geteuid() != os.getuid() else None,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ReloadError(f"identity.reload_command ({words}): {error}; {what}: run it by hand") from None
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip()[-300:]
        raise ReloadError(
            f"identity.reload_command ({words}) ended with {done.returncode}: {said}; {what}: run it by hand"
        )


def _place(broker: Broker, name: str, data: bytes) -> None:
    """Replace one file; group and mode are set before the rename, because the broker may read at any time."""
    path = broker.folder / name
    with disk_errors(path):
        _folder(broker, broker.folder, 0o750 if broker.group else 0o700)
        if path.parent != broker.folder:
            _folder(broker, path.parent, 0o750 if broker.group else 0o700)
        # Created in the top folder, to inherit its group.
        handle, temporary = tempfile.mkstemp(prefix=".tmp-", dir=broker.folder)
        try:
            with os.fdopen(handle, "wb") as file:
                _to_group(broker, file.fileno())
                os.fchmod(file.fileno(), 0o640 if broker.group else 0o600)
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            Path(temporary).replace(path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
        sync_folder(path.parent)


def _folder(broker: Broker, path: Path, mode: int) -> None:
    """Create a folder, or correct its mode.

    With a group, the top folder passes its group on (setgid). Under the shipped unit the coordinator may
    neither change a group nor set that bit, so correct modes are left alone.
    """
    path.mkdir(parents=True, exist_ok=True)
    _to_group(broker, path)
    found = path.stat().st_mode
    if broker.group and path == broker.folder and not found & stat.S_ISGID:
        with contextlib.suppress(PermissionError):  # files are given to the group one by one instead
            path.chmod(mode | stat.S_ISGID)
            return
    if found & 0o777 != mode:
        path.chmod(mode)


def _to_group(broker: Broker, path: Path | int) -> None:
    """Give a file or folder to the broker's group if it belongs to another."""
    if not broker.group:
        return
    try:
        number = grp.getgrnam(broker.group).gr_gid
    except KeyError:
        raise Misconfigured(
            f"identity.broker_group: there is no group {broker.group!r}; name the broker's "
            "group, or remove the key"
        ) from None
    found = os.fstat(path) if isinstance(path, int) else path.stat()
    if found.st_gid == number:
        return
    try:
        os.chown(path, -1, number)
    except OSError as error:  # EPERM: not permitted; EINVAL: the group is unknown in this user namespace
        raise Misconfigured(
            f"identity.broker_group: this user may not give {broker.folder} to the group {broker.group!r} "
            f"({error.strerror}); as root: install -d -o USER -g {broker.group} -m 2750 {broker.folder} "
            "(USER: who runs the coordinator); "
            "the unit needs PrivateUsers=no, as in systemd/examples/coordinator-broker.conf"
        ) from None
