"""Packages of a test: the files that pip leaves of a wheel, without pip."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from models import package_files, packages
from protocol.tasks.network import Encoder, Package
from protocol.tasks.task import Task

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "own_network" / "lichen_example_net.py"
NAME = "lichen-example-net"
LASTING = "lichen-lasting-net"


def install(
    folder: Path,
    files: Mapping[str, str],
    points: Mapping[str, str],
    *,
    name: str = NAME,
    version: str = "1.2.0",
    listed: tuple[str, ...] = (),
) -> Path:
    """Write a distribution.

    Args:
        folder: on ``sys.path`` of whoever shall find it.
        files: text of each file, by its path in ``folder``.
        points: ``group/name`` -> ``module:object``.
        name: of the distribution.
        version: of it.
        listed: further lines of RECORD.

    Returns:
        The folder of its metadata.
    """
    about = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    about.mkdir(parents=True)
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    sections: dict[str, list[str]] = {}
    for point, value in points.items():
        group, kind = point.split("/")
        sections.setdefault(group, []).append(f"{kind} = {value}")
    text = "".join(f"[{group}]\n" + "\n".join(lines) + "\n" for group, lines in sections.items())
    (about / "entry_points.txt").write_text(text)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    own = [f"{about.name}/{one}" for one in ("METADATA", "RECORD", "entry_points.txt")]
    (about / "RECORD").write_text("".join(f"{path},,\n" for path in [*files, *own, *listed]))
    return about


def install_example(folder: Path, version: str = "1.2.0", more: str = "", name: str = NAME) -> Package:
    """The example of ``examples/own_network``, with ``more`` at its end; must be on ``sys.path``."""
    module = name.replace("-", "_")
    install(
        folder,
        {f"{module}.py": EXAMPLE.read_text() + more},
        {"lichen.encoders/separable": f"{module}:make"},
        name=name,
        version=version,
    )
    return package_files.find_package(name).package


def with_own(task: Task, package: Package, kind: str = "own:separable", **options: object) -> Task:
    """The task with that encoder for all modalities, of the width and depth that it has for each."""
    encoders = {
        m.name: Encoder.model_validate(
            {**task.encoder(m.name).model_dump(), "kind": kind, "options": options}
        )
        for m in task.modalities
    }
    network = task.network.model_copy(update={"encoders": encoders})
    made = task.model_copy(update={"network": network, "packages": (package,)})
    return Task.model_validate(made.model_dump())


@contextmanager
def importable(folder: Path) -> Iterator[Path]:
    """A folder at the begin of ``sys.path``; what was imported from it is forgotten afterwards."""
    sys.path.insert(0, str(folder))
    try:
        yield folder
    finally:
        sys.path.remove(str(folder))
        forget(folder)


def forget(folder: Path) -> None:
    """Forget the modules that were imported from a folder, and that any package was."""
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(str(folder)):
            del sys.modules[name]
    packages.permit(())
    packages._imported.clear()


def permitted_example() -> Package:
    """The example, installed for this process until its end, and permitted from now on."""
    package = _installed_once()[1]
    packages.permit([package.name])
    return package


@cache
def _installed_once() -> tuple["TemporaryDirectory[str]", Package]:
    """The folder, which is removed at the end of the process, and the package in it.

    Its name is its own: tests that install the example beside it would find two of them.
    """
    folder = TemporaryDirectory(prefix="lichen-package-")
    sys.path.append(folder.name)
    return folder, install_example(Path(folder.name), name=LASTING)
