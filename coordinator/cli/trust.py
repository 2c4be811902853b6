"""``lichen coordinator trust``: init, rotate, sign, status."""

import json
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from coordinator.cli.options import Config
from coordinator.config.coordinator import load_settings
from coordinator.trust import root_ceremony
from coordinator.trust.keys import Key
from coordinator.trust.repository import AHEAD_S, DAY_S, Repository, ahead_words
from coordinator.trust.root_ceremony import Done
from coordinator.trust.signer import repository_of
from protocol.errors import Misconfigured, Refused
from protocol.trust.metadata import Timestamp, read, unix
from runtime.cli import Format, FormatOption, print_result
from runtime.process.run_as_owner import run_as_owner

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Manage the root and the keys that sign bundles, decisions and tasks.",
)
RootKeys = Annotated[
    list[Path], typer.Option("--root-key", help="file with a key of the root; repeatable", show_default=False)
]
Passphrase = Annotated[
    Path | None, typer.Option("--passphrase-file", help="file whose first line decrypts the key files")
]
Days = Annotated[float, typer.Option("--days", min=1, max=3650, help="days until the root expires")]


@app.command()
def init(  # noqa: PLR0917 - typer reads options from the signature
    config: Config,
    root_key: RootKeys,
    threshold: Annotated[int, typer.Option(min=1, help="number of root keys that must sign")] = 1,
    days: Days = 730,
    passphrase_file: Passphrase = None,
    fmt: FormatOption = Format.TABLE,
) -> None:
    """Make the first root and the online key. Missing root key files are made.

    A file with a public key stands for a key of another person, who signs later.
    """
    settings, secret = load_settings(config), _passphrase(passphrase_file)
    repository = repository_of(settings)
    if repository.exists:
        raise Misconfigured(
            f"{repository.newest} is there; to exchange keys: lichen coordinator trust rotate"
        )
    keys = [_made(file, secret) for file in root_key]
    with run_as_owner(settings.state_dir):
        done = root_ceremony.init(repository, keys, threshold, days * DAY_S, time.time())
    files = ", ".join(map(str, root_key))
    _say(
        done, fmt, [f"Move {files} off this machine, and keep a copy: without it devices accept no new root."]
    )


@app.command()
def rotate(  # noqa: PLR0917 - typer reads options from the signature
    config: Config,
    root_key: RootKeys,
    new_root_key: Annotated[
        list[Path] | None,
        typer.Option(
            help="a key of the new root; repeatable; keys not named are dropped", show_default=False
        ),
    ] = None,
    threshold: Annotated[
        int | None, typer.Option(min=1, help="number of root keys that must sign; default: unchanged")
    ] = None,
    days: Days = 730,
    passphrase_file: Passphrase = None,
    *,
    keep_online: Annotated[
        bool, typer.Option(help="keep the online key: renew the root or exchange its keys only")
    ] = False,
    fmt: FormatOption = Format.TABLE,
) -> None:
    """Make the next root: with a new online key, new root keys (--new-root-key), or a later expiry."""
    settings, secret = load_settings(config), _passphrase(passphrase_file)
    signing = [Key.load(file, secret) for file in root_key]
    new = None if new_root_key is None else [_made(file, secret) for file in new_root_key]
    with run_as_owner(settings.state_dir):
        done = root_ceremony.rotate(
            repository_of(settings),
            [*signing, *(new or [])],
            new,
            threshold,
            days * DAY_S,
            time.time(),
            keep_online=keep_online,
        )
    _say(done, fmt, ["A running coordinator announces it within a minute, and devices follow it."])


@app.command()
def sign(
    config: Config, root_key: RootKeys, passphrase_file: Passphrase = None, fmt: FormatOption = Format.TABLE
) -> None:
    """Sign the root that waits for signatures."""
    settings, secret = load_settings(config), _passphrase(passphrase_file)
    keys = [Key.load(file, secret) for file in root_key]
    with run_as_owner(settings.state_dir):
        done = root_ceremony.sign(repository_of(settings), keys)
    _say(done, fmt, [])


@app.command()
def status(config: Config, fmt: FormatOption = Format.TABLE) -> None:
    """Show the signing keys, what is signed, and until when."""
    found = facts(repository_of(load_settings(config)), time.time())
    if fmt is Format.JSON:
        typer.echo(json.dumps(found))
        return
    for key, value in found.items():
        words = ", ".join(map(str, value)) if isinstance(value, list) else value
        typer.echo(f"{key:11} {'none' if words is None else words}")


def facts(repository: Repository, now: float) -> dict[str, Any]:
    """Data of ``status``. ``now``: Unix seconds."""
    if not repository.exists:
        waits = " a root waits: lichen coordinator trust sign" if repository.pending.is_file() else ""
        return {
            "bundles": "unsigned: there is no root (lichen coordinator trust init)." + waits,
            "root": None,
        }
    root, published = repository.root(), repository.published()
    stamped = None
    if published is not None:
        try:
            stamped, _ = read(Timestamp, published.timestamp.encode())
        except Refused as error:
            raise Misconfigured(f"{repository.folder}: published.json: {error.detail}") from None
    words = "signed"
    if root.has_expired(now):
        words = "refused by devices: the root has expired (lichen coordinator trust rotate)"
    elif stamped is None:
        words = "will be signed; nothing was signed yet"
    elif stamped.has_expired(now):
        words = "refused by devices: the timestamp has expired; a running coordinator signs it again"
    ahead_s = repository.ahead_s(now)
    if ahead_s > AHEAD_S:
        words = f"signed, but {ahead_words(ahead_s)}"
    return {
        "bundles": words,
        "root": root.version,
        "root_keys": [keyid[:16] for keyid in root.roles["root"].keyids],
        "threshold": root.roles["root"].threshold,
        "root_until": root.expires,
        "root_days": round((unix(root.expires) - now) / DAY_S, 1),
        "online_key": root.roles["timestamp"].keyids[0][:16],
        "ahead_s": round(ahead_s),
        "until": None if stamped is None else stamped.expires,
        "file": str(repository.newest),
        "pending": str(repository.pending) if repository.pending.is_file() else None,
    }


def _made(file: Path, secret: bytes | None) -> Key:
    """A key of a file; a new one if the file does not exist."""
    if not file.exists():
        Key.new().save(file, secret)
    return Key.load(file, secret)


def _passphrase(file: Path | None) -> bytes | None:
    if file is None:
        return None
    try:
        word = file.read_bytes().split(b"\n")[0].strip()
    except OSError as error:
        raise Misconfigured(f"--passphrase-file {file}: {error.strerror}") from None
    if not word:
        raise Misconfigured(f"--passphrase-file {file}: its first line is empty")
    return word


def _say(done: Done, fmt: Format, also: list[str]) -> None:
    state, hint = "counts", "Devices get it when they enrol or renew; others as trust_file in agent.toml."
    if done.lacking:
        state = f"waits for {done.lacking} signature(s) or more"
        hint = "lichen coordinator trust sign --root-key FILE"
    found = {"root": done.version, "lacking": done.lacking, "file": str(done.file)}
    print_result(fmt, found, "\n  ".join([f"root {done.version} {state}: {done.file}", hint, *also]))
