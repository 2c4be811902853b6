"""``lichen device``: invite, ls, approve, revoke, release. Works with and without a running coordinator."""

import datetime as dt
import json
import re
import time
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from coordinator.actions import devices
from coordinator.actions.answers import (
    DeviceApproved,
    DeviceAsked,
    DeviceForgotten,
    DeviceInvited,
    DeviceReleased,
    DeviceRevoked,
)
from coordinator.audit.log import account
from coordinator.cli.options import Config, TaskName, read_settings
from coordinator.config.coordinator import CoordinatorSettings, load_settings
from coordinator.diagnosis.device_logs import LogAnswer
from coordinator.identity.paths import IdentityPaths
from coordinator.identity.store import IdentityStore
from coordinator.status.device_list import all_devices, seen_devices
from coordinator.storage.engines.shared_sqlite import IDENTITIES
from protocol.base import name_trouble
from protocol.errors import Reason, Refused, Transient
from runtime.cli import Format, FormatOption, fail, print_answer
from runtime.process.run_as_owner import run_as_owner
from runtime.text import one_line

app = typer.Typer(
    no_args_is_help=True, add_completion=False, help="Admit devices to the fleet: invite, approve, revoke."
)

_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_MIN_S, _MAX_S = 60, 30 * 86400
_POLL_S: Final = 0.5
_KEY_DIGITS: Final = 16
"""As many as a waiting device shows of its key."""


def _lasting(text: str) -> float:
    found = re.fullmatch(r"([0-9]{1,7})([smhd])", text.strip())
    seconds = int(found[1]) * _UNITS[found[2]] if found else 0
    if not _MIN_S <= seconds <= _MAX_S:
        raise typer.BadParameter(f"{text!r}: write a time from 1m to 30d, as 30m, 24h or 7d")
    return float(seconds)


def _name(text: str | None) -> str | None:
    if text is None:
        return None
    if words := name_trouble(text):
        raise typer.BadParameter(words)
    return text


Name = Annotated[str, typer.Argument(help="name of the device", callback=_name)]


@app.command()
def invite(
    config: Config,
    name: Annotated[
        str | None,
        typer.Argument(
            help="name of the device; without it: for any new name, which waits for approval",
            callback=_name,
        ),
    ] = None,
    expires: Annotated[str, typer.Option(help="how long the invite is valid: 30m, 24h, 7d")] = "24h",
    fmt: FormatOption = Format.TABLE,
) -> None:
    """Make an invite: one word for `lichen agent enroll`, which works once. It is a secret."""
    lasts_s = _lasting(expires)
    settings = load_settings(config)
    with run_as_owner(settings.state_dir):
        made = devices.invite(settings, account(), name, lasts_s)
    word, ends = made.word, _when(made.ends)
    if fmt is Format.JSON:
        typer.echo(json.dumps(DeviceInvited.of(name, made).model_dump(mode="json")))
        return
    typer.echo(word)
    # The word alone is on stdout: `lichen device invite NAME > invite.txt` makes a file for --invite-file.
    whom = name or "any new device; it says its name, and waits for: lichen device approve NAME"
    for line in (
        f"It works once, until {ends}, for {whom}.",
        "On the device: lichen agent enroll --config agent.toml --invite-file FILE",
    ):
        typer.echo(line, err=True)


@app.command("ls")
def list_(config: Config, *, task: TaskName = None, fmt: FormatOption = Format.TABLE) -> None:
    """List all devices: those with an identity, and those that reported without one."""
    settings = read_settings(config, task)
    found: dict[str, Any] = {"fleet": settings.fleet, "devices": [], "invites": []}
    with run_as_owner(settings.state_dir):
        seen = seen_devices(settings.location)
        if settings.location.has(IDENTITIES):
            with IdentityStore(settings.location) as book:
                book.refresh()
                found["devices"] = all_devices(book.devices(), seen, book.released_at)
                found["invites"] = [
                    {"device": one.device, "expires": _when(one.expires_wall)} for one in book.invites()
                ]
        else:
            found["devices"] = all_devices([], seen, lambda _: None)
    if fmt is Format.JSON:
        typer.echo(json.dumps(found))
        return
    # Names are typed again, keys compared digit by digit, quarantines have an end: none of it is cut off.
    name, key_print = Column("device", overflow="fold"), Column("key", no_wrap=True)
    table = Table(name, "status", "now", "certificate until", key_print, Column("note", overflow="fold"))
    for row in found["devices"]:
        key = (row["key"] or "")[:_KEY_DIGITS]
        until = (row["certificate_until"] or "")[:10]
        table.add_row(row["device"], row["status"], row["now"] or "", until, key, escape(row["note"]))
    console = Console()
    console.print(table)
    for one in found["invites"]:
        whom = one["device"] or "any new name"
        console.print(f"open invite for {whom} until {one['expires']}", markup=False)
    if not found["devices"]:
        first = "" if IdentityPaths.of(settings).authority.is_dir() else "lichen coordinator init, and then: "
        console.print(f"No device yet: {first}lichen device invite NAME", markup=False)


@app.command()
def approve(config: Config, name: Name, *, task: TaskName = None, fmt: FormatOption = Format.TABLE) -> None:
    """Admit a pending device, or end a device's quarantine."""
    settings = read_settings(config, task)
    with run_as_owner(settings.state_dir):
        was = devices.approve(settings, account(), name)
    print_answer(fmt, DeviceApproved.of(name, was))


@app.command()
def revoke(
    config: Config,
    name: Name,
    *,
    unknown: Annotated[
        bool, typer.Option("--unknown", help="bar a name that the coordinator does not know")
    ] = False,
    fmt: FormatOption = Format.TABLE,
) -> None:
    """Revoke a device's certificates: the broker and the coordinator refuse it from now on.

    Exit status 75, or 78 if the broker's files cannot be written: the device is revoked, but the broker
    does not know it yet.
    """
    settings = load_settings(config)
    with run_as_owner(settings.state_dir):
        done = devices.revoke(settings, account(), name, unknown=unknown)
    print_answer(fmt, DeviceRevoked.of(name, done))


@app.command()
def forget(
    config: Config,
    name: Name,
    *,
    task: TaskName = None,
    force: Annotated[bool, typer.Option("--force", help="forget a device that is online, too")] = False,
    fmt: FormatOption = Format.TABLE,
) -> None:
    """Forget a device's reports and free its place.

    What it delivered stays in the history. Its admission does not change; see revoke. Exit status 75: it is
    online, and would report again.
    """
    settings = read_settings(config, task)
    with run_as_owner(settings.state_dir):
        runs = devices.forget(settings, account(), name, force=force)
    print_answer(fmt, DeviceForgotten.of(name, runs=runs))


@app.command()
def release(config: Config, name: Name, *, task: TaskName = None, fmt: FormatOption = Format.TABLE) -> None:
    """End a device's quarantine. It does not admit a device that waits for approval; see approve."""
    settings = read_settings(config, task)
    with run_as_owner(settings.state_dir):
        devices.release(settings, account(), name)
    print_answer(fmt, DeviceReleased(device=name))


@app.command(name="ask-state")
def ask_state(config: Config, name: Name, *, task: TaskName = None, fmt: FormatOption = Format.TABLE) -> None:
    """Have the running coordinator ask a device for its state. Exit status 75: nobody can ask, or answer."""
    settings = read_settings(config, task)
    with run_as_owner(settings.state_dir):
        devices.ask_state(settings, account(), name)
    print_answer(fmt, DeviceAsked(device=name))


@app.command()
def logs(
    config: Config,
    name: Name,
    wait: Annotated[float, typer.Option(min=1, max=300, help="seconds to wait for the answer")] = 30.0,
    *,
    task: TaskName = None,
    last: Annotated[
        bool, typer.Option("--last", help="do not ask: show the answer to the last question")
    ] = False,
    fmt: FormatOption = Format.TABLE,
) -> None:
    """Ask a device for its last log lines, and print them.

    Exit status 65: its owner does not permit it; 75: it is offline, no coordinator runs, or no answer came.
    """
    settings = read_settings(config, task)
    with run_as_owner(settings.state_dir):
        try:
            answer = _stored(settings, name) if last else _asked(settings, name, wait)
        except (Refused, Transient) as error:
            fail("lichen device logs", error, fmt)
    lines = answer.lines
    if lines is None:  # --last alone
        fail("lichen device logs", Transient(f"{name} has not answered yet"), fmt)
    if lines.refused is not None:
        words = f"{name} sends no log lines: {one_line(lines.refused)}"
        fail("lichen device logs", Refused(Reason.NOT_SELECTED, words), fmt)
    if fmt is Format.JSON:
        typer.echo(json.dumps({"received": _when(answer.answered or 0.0), **lines.model_dump(mode="json")}))
        return
    for line in lines.lines:
        typer.echo(f"{_when(line.at)} {line.level:8} {line.text}")
    typer.echo(f"{len(lines.lines)} lines of {name}; {lines.earlier} earlier ones are not stored", err=True)


def _stored(settings: CoordinatorSettings, name: str) -> LogAnswer:
    answer = devices.last_logs(settings, name, time.time())
    if answer is None:
        raise Transient(f"nobody asked {name} for its log lines within a day; leave out --last")
    return answer


def _asked(settings: CoordinatorSettings, name: str, wait_s: float) -> LogAnswer:
    """Ask, and wait for the answer. Raises Refused, Transient."""
    asked = devices.ask_logs(settings, account(), name)
    typer.echo(f"{name} is asked; waiting {wait_s:g} s for its answer", err=True)
    until = time.monotonic() + wait_s
    while time.monotonic() < until:
        time.sleep(_POLL_S)
        answer = devices.last_logs(settings, name, time.time())
        if answer is not None and answer.answered is not None and answer.answered >= asked:
            return answer
    words = (
        f"{name} did not answer within {wait_s:g} s: its link is slow or just broke, or its lichen is "
        "older than this question; an answer that comes later is shown with --last"
    )
    raise Transient(words)


def _when(wall: float) -> str:
    return dt.datetime.fromtimestamp(wall, dt.UTC).isoformat(timespec="seconds")
