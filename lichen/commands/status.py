"""``lichen status``: the present state of a fleet, as the broker has it, and its waits."""

import asyncio
import contextlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any
from uuid import uuid4

import typer
from pydantic import BaseModel, ConfigDict, ValidationError
from rich.console import Console

from lichen.commands.looking import as_onlooker
from lichen.commands.status_table import coordinator_state, show
from protocol.base import Name
from protocol.errors import Misconfigured, Transient
from protocol.topics import Kind, broadcast_topic
from runtime import exit_codes
from runtime.cli import Format, FormatOption
from runtime.fleet_view import FleetView
from runtime.logs import configure
from runtime.mqtt.link import Link
from runtime.settings.load import LogSettings, MqttSettings, load

app = typer.Typer(add_completion=False)
_CONNECT_S = 10.0


class Where(BaseModel):
    """Fleet and broker from a daemon's configuration; the rest of the file is ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    fleet: Name
    mqtt: MqttSettings = MqttSettings()


def whereabouts(config: Path | None, fleet: str | None, given: Mapping[str, str | int | None]) -> Where:
    """The fleet and its broker: from the configuration, overridden by the command line.

    Raises:
        Misconfigured: neither names the fleet, or a value is wrong.
    """
    if config is None and fleet is None:
        raise Misconfigured("which fleet? Give its name, or --config FILE (agent.toml or coordinator.toml)")
    chosen = {key: value for key, value in given.items() if value is not None}
    name, broker = fleet, MqttSettings()
    if config is not None:
        # variables of the daemon's other sections do not concern us
        ours = {
            k: v for k, v in os.environ.items() if k.upper().startswith(("LICHEN_MQTT__", "LICHEN_FLEET"))
        }
        section = load(Where, config, environ=ours)
        name, broker = fleet or section.fleet, as_onlooker(section.mqtt)
    try:
        return Where(fleet=name or "", mqtt=broker.model_copy(update=chosen))
    except ValidationError as error:
        raise Misconfigured(f"fleet {fleet!r}: {error.errors()[0]['msg']}") from None


async def look(settings: MqttSettings, fleet: str, listen_s: float) -> FleetView:
    """Connect, read retained messages and those that come within ``listen_s``, and disconnect.

    Raises:
        Transient: no connection in 10 seconds; the message says why.
    """
    view, round_topic = FleetView(fleet), broadcast_topic(fleet, Kind.ROUND)
    # A new client id and a session that ends with it: a broker that finds an old session of ours would not
    # send retained messages again.
    temporary = settings.model_copy(update={"session_expiry_s": 0})
    link = Link(temporary, f"status-{uuid4().hex}", filters=view.filters())
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
                    view.heard |= message.topic == round_topic and not message.retain
                    message.ack()
    except TimeoutError:
        raise Transient(f"no connection to {settings.where} in {_CONNECT_S:g} s: {link.why}") from None
    finally:
        connected.cancel()
        running.cancel()
        await asyncio.wait([running, connected])
    return view


def as_json(view: FleetView) -> dict[str, Any]:
    """The state for programs."""
    return {
        "fleet": view.fleet,
        "coordinator": coordinator_state(view),
        "task": view.task.name if view.task else None,
        "round": view.round.model_dump(mode="json") if view.round else None,
        "model": view.model.model_dump(mode="json") if view.model else None,
        "devices": {
            name: {**asdict(d), "modalities": {m: s.model_dump(mode="json") for m, s in d.modalities.items()}}
            for name, d in sorted(view.devices.items())
        },
    }


@app.command()
def status(
    *,
    fleet: Annotated[str | None, typer.Argument(help="name of the fleet; not needed with --config")] = None,
    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", help="agent.toml or coordinator.toml: fleet, broker, TLS, account"),
    ] = None,
    host: Annotated[str | None, typer.Option(help="the broker's host", show_default="127.0.0.1")] = None,
    port: Annotated[
        int | None, typer.Option(help="the broker's port", show_default="1883", min=1, max=65535)
    ] = None,
    listen_s: Annotated[float, typer.Option(help="seconds to listen", min=0.1, max=60)] = 1.5,
    why: Annotated[bool, typer.Option("--why", help="show what the round waits for")] = False,
    output_format: FormatOption = Format.TABLE,
) -> None:
    """Show devices, round and deployed model of a fleet, from the broker's retained messages.

    Exit status 69: the broker cannot be reached.
    """
    configure(LogSettings(level="error"))
    where = whereabouts(config, fleet, {"host": host, "port": port})
    try:
        view = asyncio.run(look(where.mqtt, where.fleet, listen_s))
    except Transient as error:
        typer.echo(f"lichen: {error}", err=True)
        raise typer.Exit(exit_codes.UNAVAILABLE) from None
    if output_format is Format.JSON:
        typer.echo(json.dumps(as_json(view)))
    else:
        show(view, Console(), why=why, listened_s=listen_s)
