"""``lichen export backbone``: a file that a task may name as the backbone of a modality."""

import hashlib
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Final

import typer

from protocol.errors import Misconfigured
from protocol.tasks.task import Modality
from runtime.outputs import writing
from runtime.storage.files import replace_file

_KEYS: Final = ("name", "kind", "channels", "height", "width", "rate_hz", "unit", "offset", "scale")


def backbone(
    out: Annotated[Path, typer.Option(help="The ONNX file to write.", show_default=False)],
    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", help="coordinator.toml, with its versions.", show_default=False),
    ] = None,
    modality: Annotated[
        str, typer.Option(help="With --config: whose encoder becomes the backbone.", show_default=False)
    ] = "",
    version: Annotated[
        str | None,
        typer.Option(help="With --config: a number, or best; default: the newest.", show_default=False),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(help="Instead of --config: an ONNX model of another program.", show_default=False),
    ] = None,
) -> None:
    """Write a backbone: the encoder of a version, or a foreign ONNX model in the form that devices accept.

    Of a foreign model, weights in other files are taken in, local functions are unfolded, and descriptions
    are removed. Operators outside of ONNX's own cannot be used.
    """
    if (file is None) == (config is None):
        raise typer.BadParameter("give either --config with --modality, or --file")
    from export.job import require_parts  # noqa: PLC0415 - as below

    require_parts()
    from export import backbone as made  # noqa: PLC0415 - imports torch, and --help must not wait for it

    table = ""
    if file is not None:
        data = made.plain_file(file)
    else:
        if not modality:
            raise typer.BadParameter("--modality is missing: whose encoder becomes the backbone")
        from export.cli import read_state  # noqa: PLC0415 - as above
        from lichen.commands.export_version import version_of  # noqa: PLC0415 - a machine that only exports has no SQL
        from models import packages  # noqa: PLC0415 - as above

        with TemporaryDirectory(prefix="lichen-export-") as scratch:
            chosen = version_of(config or Path(), version, Path(scratch))
            packages.permit(chosen.packages)
            packages.require_permitted(chosen.task)
            state = read_state(chosen.version, chosen.blobs)
        data = made.encoder_file(chosen.task, state, modality)
        table = _table(chosen.task.modality(modality))
    if out.exists() and not out.is_file():
        raise Misconfigured(f"--out {out}: is no file; choose another place")
    with writing(out):
        replace_file(out, data)
    line = f'backbone = {{ file = "{out.name}", sha256 = "{hashlib.sha256(data).hexdigest()}" }}'
    typer.echo(f"{table}{line}")


def _table(modality: Modality) -> str:
    """The table of a task whose windows fit the encoder."""
    said = modality.model_dump(include=set(_KEYS), exclude_none=True)
    lines = [
        f'{key} = "{said[key]}"' if isinstance(said[key], str) else f"{key} = {said[key]}"
        for key in _KEYS
        if key in said
    ]
    return "[[modalities]]\n" + "\n".join(lines) + "\n"
