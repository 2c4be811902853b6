"""The ``lichen`` command: imports only the part that the first argument names, and prints errors as messages.

Exit codes are sysexits (``runtime/exit_codes.py``, docs/exit-codes.md): 0 done, 2 wrong usage, 65 refused, 69
an extra or the broker is missing, 75 try again later, 78 the operator must change something; any other error
is internal and shows a traceback.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn

from protocol.errors import Misconfigured, Refused, Transient
from runtime import exit_codes
from runtime.outputs import NotWritten
from runtime.process.fast_arguments import config_argument

if TYPE_CHECKING:
    import typer


@dataclass(frozen=True)
class CommandPart:
    """A subcommand: the place of its typer app, and its line in ``lichen --help``, without an import."""

    app: str
    """Module and name of its typer app; empty: the distribution ``lichen-lab`` has it."""
    help: str
    panel: str
    runs: str = ""
    """Module and name of its daemon's ``run(config)``, for ``lichen NAME run``."""


_RUN: Final = "Run"
_STUDY: Final = "Try and measure"
_LOOK: Final = "Look"
PARTS: Final[dict[str, CommandPart]] = {
    "agent": CommandPart(
        "edge_agent.cli.main:app",
        "The daemon of a device: collects, learns, sends, predicts.",
        _RUN,
        runs="edge_agent.app:run",
    ),
    "coordinator": CommandPart(
        "coordinator.cli.main:app", "The daemon of a fleet: rounds, aggregation, export, rollout.", _RUN
    ),
    "console": CommandPart(
        "console.cli:app", "The live pages and the management API of a coordinator.", _RUN
    ),
    "device": CommandPart(
        "coordinator.cli.device:app", "Admit devices to a fleet: invite, list, approve, revoke.", _RUN
    ),
    "rollout": CommandPart(
        "coordinator.cli.rollout:app", "Roll a version out: canaries first, then waves.", _RUN
    ),
    "round": CommandPart(
        "coordinator.cli.round:app", "Explain a round; hold, resume and end the rounds.", _LOOK
    ),
    "audit": CommandPart(
        "coordinator.cli.audit:app", "Show who did what, and check that nobody changed it.", _LOOK
    ),
    "task": CommandPart(
        "lichen.commands.task:app", "Write a first task from recordings; check a task.", _RUN
    ),
    "export": CommandPart(
        "lichen.commands.export:app",
        "Export a version to an ONNX bundle, checked against torch; follow a fleet to MLflow.",
        _RUN,
    ),
    "demo": CommandPart("", "Run a whole fleet on this machine, on real sensor data.", _STUDY),
    "simulate": CommandPart("", "Train many devices in one process, without a broker.", _STUDY),
    "bench": CommandPart("", "Run the benchmarks.", _STUDY),
    "data": CommandPart(
        "lichen.commands.data:app", "Import, check and cut recordings; get data sets.", _STUDY
    ),
    "status": CommandPart(
        "lichen.commands.status:app", "Show what a fleet does and what it waits for.", _LOOK
    ),
    "broker": CommandPart("lichen.broker.cli:app", "Check what a broker can do for lichen.", _LOOK),
    "protocol": CommandPart("lichen.commands.protocol:app", "Print the wire protocol as AsyncAPI.", _LOOK),
}

EXTRA_OF: Final = {
    "torch": "train",
    "onnx": "export",
    "onnxscript": "export",
    "onnxruntime": "infer",
    "sqlalchemy": "coordinator",
    "prometheus_client": "coordinator",
    "jinja2": "console",
    "starlette": "coordinator",
    "uvicorn": "coordinator",
    "alembic": "mlflow",
    "mlflow": "mlflow",
    "pyarrow": "parquet",
    "PIL": "import",
}
"""Third-party module -> the extra that installs it."""


def _stub() -> None:
    """Replaces, in the help, a part that is not imported."""


def _show_version(show: bool) -> None:  # noqa: FBT001 - typer passes an option's value by position
    from importlib.metadata import version  # noqa: PLC0415 - as typer, below

    import typer  # noqa: PLC0415

    if show:
        typer.echo(f"lichen {version('lichen')}")
        raise typer.Exit


def front() -> "typer.Typer":
    """The app that knows only the parts' names: for ``--help``, ``--version`` and unknown commands."""
    import typer  # noqa: PLC0415 - a daemon on a device works without it

    app = typer.Typer(
        name="lichen",
        help="Federated learning for fleets of small devices over MQTT, with ONNX models on the devices.",
        epilog="Each command has its own --help. Start with: lichen demo",
        no_args_is_help=True,
        add_completion=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    @app.callback()
    def root(
        *,
        show_version: Annotated[
            bool,
            typer.Option("--version", help="Print the version.", callback=_show_version, is_eager=True),
        ] = False,
    ) -> None:
        pass

    for name, part in PARTS.items():
        app.command(name, help=part.help, rich_help_panel=part.panel)(_stub)
    return app


def _resolve(where: str) -> Any:
    module, _, attribute = where.partition(":")
    return getattr(import_module(module), attribute)


def mount(name: str) -> "typer.Typer":
    """Import the part of that name, with the additions of lichen-lab (entry points ``lichen.commands``)."""
    import typer  # noqa: PLC0415 - as above

    apps = [_resolve(PARTS[name].app)] if PARTS[name].app else []
    apps += [one.load() for one in entry_points(group="lichen.commands", name=name)]
    if not apps:
        _stop(exit_codes.UNAVAILABLE, f"lichen {name} comes with lichen-lab: pip install lichen-lab")
    for app in apps:
        if not isinstance(app, typer.Typer):
            raise TypeError(f"{name} is not a typer app: {app!r}")
    for app in apps[1:]:
        apps[0].add_typer(app)
    mounted: typer.Typer = apps[0]
    return mounted


def _stop(code: int, words: str) -> NoReturn:
    sys.stderr.write(f"lichen: {words}\n")
    raise SystemExit(code)


def _run(name: str | None, words: Sequence[str], title: str) -> int:
    """Run the arguments. A daemon's ``run`` starts without the 4 MB of the command line's library."""
    if name and PARTS[name].runs and words[:1] == ["run"]:
        config = config_argument(name, words[1:])
        if config is not None:
            status: int = _resolve(PARTS[name].runs)(config)
            return status
    import typer  # noqa: PLC0415 - as above

    app = mount(name) if name else front()
    typer.main.get_command(app)(args=words, prog_name=title)
    return exit_codes.OK


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run the command line; ends by SystemExit."""
    words = list(sys.argv[1:] if argv is None else argv)
    name = words[0] if words and words[0] in PARTS else None
    title = f"lichen {name}" if name else "lichen"
    try:
        code = _run(name, words[1:] if name else words, title)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in EXTRA_OF:
            raise
        extra = EXTRA_OF[missing]
        words_ = f"{title} needs the {extra} extra ({missing} is missing): pip install 'lichen[{extra}]'"
        _stop(exit_codes.UNAVAILABLE, words_)
    except (Misconfigured, Refused, Transient) as error:
        _stop(exit_codes.of(error), error.words if isinstance(error, Refused) else str(error))
    except NotWritten as error:
        _stop(error.exit_code, str(error))
    raise SystemExit(code)


if __name__ == "__main__":
    main()
