"""``lichen agent enroll``."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from edge_agent.cli.options import DEFAULT_CONFIG, Config
from edge_agent.identity import fleet_secret as secrets
from edge_agent.identity.config_dropin import Unenrolled, require_writable, write
from edge_agent.identity.files import Identity, folder_of
from protocol.base import name_trouble
from protocol.enrolment import Invite
from protocol.errors import Misconfigured, Refused, Transient
from runtime import exit_codes
from runtime.cli import Format, FormatOption, fail
from runtime.mqtt.tls import utc
from runtime.process.run_as_owner import run_as_owner
from runtime.settings.load import load

_MAX_INVITE: int = 8192


def enroll(
    word: Annotated[
        str | None, typer.Argument(metavar="INVITE", help="the invite that lichen device invite printed")
    ] = None,
    *,
    config: Config = DEFAULT_CONFIG,
    device: Annotated[str | None, typer.Option(help="name of this device, if the invite has none")] = None,
    invite_file: Annotated[
        Path | None,
        typer.Option(help="file with the invite (-: standard input); other users cannot see it in ps"),
    ] = None,
    fleet_secret: Annotated[
        Path | None,
        typer.Option(help="the fleet's secret (lichen agent secret), for tasks on knowledge graphs"),
    ] = None,
    wait: Annotated[float, typer.Option(help="seconds to retry and to wait for approval", min=1)] = 3600.0,
    replace: Annotated[bool, typer.Option("--replace", help="give up an existing identity")] = False,
    output: FormatOption = Format.TABLE,
) -> None:
    """Get the certificate of this device. The key is made here and never leaves the device.

    After an interruption run the same command again. Exit status 77: refused; 75: not yet.
    """
    try:
        shared = None if fleet_secret is None else secrets.read(fleet_secret)
        done, path = _enroll(_invite(word, invite_file), config, device, wait, shared, replace=replace)
    except Refused as error:
        fail("lichen agent enroll", error, output, exit_codes.NOPERM, reason=error.reason)
    except (Misconfigured, Transient) as error:
        fail("lichen agent enroll", error, output)
    _show(done, path, output, None if shared is None else secrets.fingerprint(shared))


def _invite(word: str | None, file: Path | None) -> Invite:
    """Read the invite from the command line, a file or standard input.

    Raises:
        Misconfigured: there is none, or it is not an invite.
    """
    if word is not None and file is None:
        return Invite.decode(word)
    if word is not None:
        raise typer.BadParameter("give the invite or --invite-file, not both")
    if file is None and sys.stdin.isatty():
        raise typer.BadParameter("give the invite, or --invite-file; lichen device invite prints one")
    if file is None or str(file) == "-":
        return _decoded(sys.stdin.read(_MAX_INVITE), "standard input")
    try:
        with file.open(encoding="utf-8") as text:
            return _decoded(text.read(_MAX_INVITE), f"--invite-file {file}")
    except OSError as error:
        raise Misconfigured(f"--invite-file {file}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise Misconfigured(f"--invite-file {file}: not a text file, so not an invite") from None


def _decoded(text: str, source: str) -> Invite:
    """Decode the invite; an error names its source."""
    if not text.strip():
        raise Misconfigured(
            f"{source} is empty; give the invite that lichen device invite printed, or --invite-file FILE"
        )
    try:
        return Invite.decode(text)
    except Misconfigured as error:
        raise Misconfigured(f"{source}: {error}") from None


def _enroll(
    invite: Invite,
    config: Path,
    device: str | None,
    wait_s: float,
    fleet_secret: bytes | None,
    *,
    replace: bool,
) -> tuple[Any, Path]:
    from edge_agent.identity.enrolment import enrol  # noqa: PLC0415 - `lichen agent run` needs no crypto library
    from edge_agent.identity.retry import RetryPolicy  # noqa: PLC0415

    settings = load(Unenrolled, config)
    name = _device(invite, device, settings.device)
    require_writable(config)
    folder = folder_of(settings.device_dir)
    with run_as_owner(settings.state_dir):
        if fleet_secret is not None:
            secrets.place(secrets.secret_path(settings), fleet_secret, replace=replace)
        done = enrol(folder, invite, name, RetryPolicy(wait_s, _say), replace=replace)
        for words in folder.exposed():
            _say(words)
    return done, write(config, folder, done.identity)


def _device(invite: Invite, given: str | None, configured: str) -> str:
    """The name to ask for: the invite's, else the option's, else the configuration's.

    Raises:
        Misconfigured: none is known, it is not a name, or two differ.
    """
    if given is not None and invite.device not in (None, given):
        raise Misconfigured(f"--device {given}: the invite is for {invite.device!r}; leave out --device")
    name = invite.device or given or configured
    if not name:
        raise Misconfigured("the name of this device is unknown; give --device NAME (the invite is for any)")
    if words := name_trouble(name):
        raise Misconfigured(words)
    return name


def _say(words: str) -> None:
    typer.echo(f"lichen agent enroll: {words}", err=True)


def _show(done: Any, path: Path, output: Format, shared: str | None) -> None:
    identity: Identity = done.identity
    if output is Format.JSON:
        found = {"status": "already" if done.before else "enrolled", "drop_in": str(path)}
        if shared is not None:
            found["fleet_secret"] = shared
        typer.echo(json.dumps(found | identity.model_dump(exclude={"invite_sha256"}), indent=1))
        return
    how = "was enrolled before as" if done.before else "is enrolled as"
    typer.echo(f"This device {how} {identity.device} in the fleet {identity.fleet}.")
    typer.echo(f"Its certificate is valid until {utc(identity.not_after)}; a running agent renews it.")
    if shared is not None:
        typer.echo(f"The fleet's secret is in place; its fingerprint, the same on all devices, is {shared}.")
    typer.echo(f"{path} makes the agent use it: (re)start it, as with: systemctl restart lichen-agent")
