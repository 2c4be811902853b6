"""``lichen console person`` and ``link``: who may use the console."""

import datetime as dt
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.table import Table

from console.access.listing import PeopleAnswer, read_people
from coordinator.accounts.people import Role
from coordinator.actions import people
from coordinator.actions.answers import LinkMade, PersonChanged, PersonRevoked, PersonSignedOut
from coordinator.actions.people import PersonFile
from coordinator.audit.log import account
from coordinator.cli.options import Config
from coordinator.config.coordinator import load_settings
from protocol.base import name_trouble
from runtime.cli import Format, FormatOption, print_answer, print_result
from runtime.process.run_as_owner import run_as_owner
from runtime.storage.files import write_atomic

person = typer.Typer(no_args_is_help=True, add_completion=False, help="Who may use the console.")
_DAYS: Final = 365.0


def _name(text: str) -> str:
    if words := name_trouble(text):
        raise typer.BadParameter(words)
    return text


Name = Annotated[str, typer.Argument(help="name of the person", callback=_name)]
RoleOption = Annotated[Role, typer.Option("--role", help="what they may do")]
Days = Annotated[float, typer.Option("--days", min=1, max=3650, help="how long the certificate is valid")]
Out = Annotated[
    Path | None, typer.Option("--out", help="the file for a browser  [default: NAME.p12]", show_default=False)
]
Pem = Annotated[
    Path | None, typer.Option("--pem", help="also a file for programs, not encrypted", show_default=False)
]


@person.command()
def add(  # noqa: PLR0917 - one for each option of the command
    config: Config,
    name: Name,
    role: RoleOption = "viewer",
    days: Days = _DAYS,
    out: Out = None,
    pem: Pem = None,
    fmt: FormatOption = Format.TABLE,
) -> None:
    """Admit a person: writes a certificate to install in their browser, and prints its password."""
    settings = load_settings(config)
    with run_as_owner(settings.state_dir):
        made = people.add(settings, account(), name, role, days)
    _write(made, out, pem, fmt)


@person.command()
def renew(  # noqa: PLR0917 - as above
    config: Config,
    name: Name,
    days: Days = _DAYS,
    out: Out = None,
    pem: Pem = None,
    fmt: FormatOption = Format.TABLE,
) -> None:
    """Make another certificate for a person; the one before does not count from now on."""
    settings = load_settings(config)
    with run_as_owner(settings.state_dir):
        made = people.renew(settings, account(), name, days)
    _write(made, out, pem, fmt)


def _write(made: PersonFile, out: Path | None, pem: Path | None, fmt: Format) -> None:
    file = out or Path(f"{made.name}.p12")
    write_atomic(file, made.pkcs12)
    if pem is not None:
        write_atomic(pem, made.pem)
    found: dict[str, str | None] = {
        "person": made.name,
        "role": made.role,
        "file": str(file),
        "password": made.password,
    }
    found |= {"pem": None if pem is None else str(pem), "certificate_until": _when(made.not_after)}
    words = (
        f"{file}: the certificate of {made.name} ({made.role}), valid until {_when(made.not_after)[:10]}.\n"
        f"Its password: {made.password}\n"
        "Install it in the browser, and send the password by another way than the file."
    )
    print_result(fmt, found, words)


@person.command("ls")
def list_(config: Config, fmt: FormatOption = Format.TABLE) -> None:
    """List people, links that nobody has used, and sessions."""
    settings = load_settings(config)
    with run_as_owner(settings.state_dir):
        found = read_people(settings.location)
    if fmt is Format.JSON:
        typer.echo(found.model_dump_json())
        return
    _show(found)


def _show(found: PeopleAnswer) -> None:
    console = Console()
    table = Table("person", "role", "certificate until", "note")
    for one in found.people:
        table.add_row(one.name, one.role, _when(one.certificate_until)[:10], one.note)
    console.print(table)
    for link_ in found.links:
        console.print(f"open link for {link_.name} ({link_.role}) until {_when(link_.expires)}", markup=False)
    for signed_in in found.sessions:
        whom = f"{signed_in.name} ({signed_in.role}) by {signed_in.how}"
        words = f"signed in: {whom} since {_when(signed_in.began)}"
        console.print(words, markup=False)


@person.command()
def role(config: Config, name: Name, role: RoleOption, fmt: FormatOption = Format.TABLE) -> None:
    """Give a person another role; it counts at once, also in their sessions."""
    settings = load_settings(config)
    with run_as_owner(settings.state_dir):
        before = people.set_role(settings, account(), name, role)
    print_answer(fmt, PersonChanged(person=name, role=role, before=before))


@person.command()
def revoke(config: Config, name: Name, fmt: FormatOption = Format.TABLE) -> None:
    """Revoke a person: their certificate does not count any more, and their sessions end at once."""
    settings = load_settings(config)
    with run_as_owner(settings.state_dir):
        ended = people.revoke(settings, account(), name)
    print_answer(fmt, PersonRevoked(person=name, sessions_ended=ended))


@person.command("sign-out")
def sign_out(config: Config, name: Name, fmt: FormatOption = Format.TABLE) -> None:
    """End the sessions of a person, and their unused links; they can sign in again."""
    settings = load_settings(config)
    with run_as_owner(settings.state_dir):
        ended = people.end_sessions(settings, account(), name)
    print_answer(fmt, PersonSignedOut(person=name, sessions_ended=ended))


def link(
    config: Config,
    name: Annotated[str, typer.Option("--name", help="whom it signs in", callback=_name)],
    role: Annotated[
        Role | None,
        typer.Option("--role", help="what they may do  [default: that of a known person, else viewer]"),
    ] = None,
    address: Annotated[
        str, typer.Option("--address", help="where browsers reach the console")
    ] = "http://127.0.0.1:8480",
    fmt: FormatOption = Format.TABLE,
) -> None:
    """Print a link that signs a person in: it works once, for 15 minutes. It is a secret."""
    settings = load_settings(config)
    with run_as_owner(settings.state_dir):
        token, given = people.link(settings, account(), name, role)
    made = LinkMade(url=f"{address.rstrip('/')}/sign-in?token={token}", person=name, role=given)
    if fmt is Format.JSON:
        typer.echo(made.model_dump_json())
        return
    typer.echo(made.url)  # alone on stdout
    typer.echo(made.words, err=True)


def _when(wall: float) -> str:
    return dt.datetime.fromtimestamp(wall, dt.UTC).isoformat(timespec="seconds")
