"""``lichen status``: what a fleet does now, as the broker knows it, and what it waits for."""

import asyncio
import contextlib
import json
from dataclasses import asdict
from enum import StrEnum
from typing import Annotated, Any
from uuid import uuid4

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from lichen.watch import FleetView
from protocol.errors import Misconfigured, Transient
from runtime.logs import configure
from runtime.mqtt import Link
from runtime.settings import LogSettings, MqttSettings

app = typer.Typer(add_completion=False)
_CONNECT_S = 10.0


class Format(StrEnum):
    """How the result is printed."""

    TABLE = "table"
    JSON = "json"


async def look(settings: MqttSettings, fleet: str, listen_s: float) -> FleetView:
    """Connect, take what is retained and what comes within ``listen_s``, and leave.

    Raises:
        Transient: no connection in 10 seconds; the message says why.
    """
    view = FleetView(fleet)
    # A name of its own and a session that ends with it: a broker that finds an old session of ours would not
    # send what is retained once more.
    passing = settings.model_copy(update={"session_expiry_s": 0})
    link = Link(passing, f"status-{uuid4().hex}", filters=view.filters())
    running = asyncio.create_task(link.run())
    connected = asyncio.create_task(link.wait_connected())
    try:
        async with asyncio.timeout(_CONNECT_S):
            done, _ = await asyncio.wait({running, connected}, return_when=asyncio.FIRST_COMPLETED)
            if running in done:
                running.result()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(listen_s):
                async for message in link.messages():
                    view.apply(message.topic, message.payload)
                    message.ack()
    except TimeoutError:
        raise Transient(f"no connection to {settings.where} in {_CONNECT_S:g} s: {link.why}") from None
    finally:
        connected.cancel()
        running.cancel()
        await asyncio.wait([running, connected])
    return view


def as_json(view: FleetView) -> dict[str, Any]:
    """The picture for programs."""
    return {
        "fleet": view.fleet,
        "task": view.task.name if view.task else None,
        "round": view.round.model_dump(mode="json") if view.round else None,
        "model": view.model.model_dump(mode="json") if view.model else None,
        "devices": {
            name: {**asdict(d), "modalities": {m: s.model_dump(mode="json") for m, s in d.modalities.items()}}
            for name, d in sorted(view.devices.items())
        },
    }


def _print(view: FleetView, console: Console, *, why: bool) -> None:
    if view.task is None and view.round is None and not view.devices:
        console.print(f"fleet {view.fleet}: the broker knows nothing of it (is the coordinator running?)")
        return
    if view.round is not None:
        now = view.round
        console.print(
            f"task {now.task}: round {now.round} of {now.rounds}, {now.phase}; version {now.version}; "
            f"{now.bytes_up:,} bytes up, {now.bytes_down:,} down",
            highlight=False,
        )
        if why:
            console.print(f"waits for: {now.waiting_for or 'nothing'}", markup=False, highlight=False)
    if view.model is not None:
        size = view.model.bundle.size
        console.print(f"deployed: version {view.model.version}, a bundle of {size:,} bytes", highlight=False)
    table = Table("device", "status", "windows", "modalities: share there, quality", "last round")
    for name, device in sorted(view.devices.items()):
        words = ", ".join(
            f"{m} {1 - s.missing:.2f}, {s.quality:.2f}" + (f" ({'; '.join(s.reasons)})" if s.reasons else "")
            for m, s in device.modalities.items()
        )
        table.add_row(name, device.status, str(device.windows), escape(words), str(device.round or ""))
    console.print(table)


@app.command()
def status(
    *,
    fleet: Annotated[str, typer.Argument(help="the fleet's name")],
    host: Annotated[str, typer.Option(help="the broker's host")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="the broker's port", min=1, max=65535)] = 1883,
    listen_s: Annotated[float, typer.Option(help="listen for so long", min=0.1, max=60)] = 1.5,
    why: Annotated[bool, typer.Option("--why", help="say what the round waits for")] = False,
    output_format: Annotated[Format, typer.Option("--format", help="table or json")] = Format.TABLE,
) -> None:
    """Show devices, round and deployed model of a fleet, from what the broker retains."""
    configure(LogSettings(level="error"))
    try:
        FleetView(fleet).filters()
    except ValueError as error:
        raise Misconfigured(str(error)) from None
    view = asyncio.run(look(MqttSettings(host=host, port=port), fleet, listen_s))
    if output_format is Format.JSON:
        typer.echo(json.dumps(as_json(view)))
    else:
        _print(view, Console(), why=why)
