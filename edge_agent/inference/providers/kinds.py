"""What a provider of models is: the contract of packages, and how a model's process is told to use one.

A package names its provider by entry point, in its ``pyproject.toml``::

    [project.entry-points."lichen.providers"]
    jetson = "lichen_jetson:PROVIDER"

``PROVIDER`` is a :class:`ProviderKind`. It is imported only in a model's process, and only if the owner of
the device allows the package (``[[infer.packages]]``, docs/accelerators.md).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from protocol.errors import LichenError
from protocol.tasks.network import Package

CPU: Final = "CPUExecutionProvider"
GROUP: Final = "lichen.providers"
MAX_ROWS: Final = 32
"""Windows of one call at most, on other providers than the CPU: compiled models have a largest batch."""
COMPILED_MODEL: Final = "compiled.onnx"
"""In the folder of an engine, of a kind with ``engine = "model"``."""


class NoHardware(LichenError):  # noqa: N818 - reads as what is the matter
    """The device has no such accelerator, or its driver does not work; the message says which."""


@dataclass(frozen=True)
class Hardware:
    """What compiled models depend on: a change of any part makes them stale.

    Attributes:
        device: name of the accelerator, as its driver gives it.
        versions: of driver and compiler, by name, as far as they say.
    """

    device: str
    versions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class SessionRequest:
    """What the options of a session may depend on.

    Attributes:
        engine: folder of the compiled model: to be written while it is compiled, later only read. None:
            nothing is kept.
        compiling: whether ``engine`` is to be written now.
        shapes: by input of the model the shape of one window, without the batch.
        max_rows: windows of one call.
        model: file of the ONNX model.
    """

    engine: Path | None
    compiling: bool
    shapes: Mapping[str, tuple[int, ...]]
    max_rows: int
    model: Path


def _no_options(_: SessionRequest) -> Mapping[str, str]:
    return {}


def _all(devices: Sequence[Any]) -> Sequence[Any]:
    return devices


@dataclass(frozen=True)
class ProviderKind:
    """A provider, as a package or lichen itself describes it.

    Attributes:
        provider: its name in ONNX Runtime, such as ``TensorrtExecutionProvider``.
        look: finds the accelerator. Raises :class:`NoHardware` if it is not there; any other error counts as
            that, too.
        options: of the provider, for ``onnxruntime.InferenceSession``.
        entries: of the session's configuration (``add_session_config_entry``).
        engine: ``none``: it does not compile, or keeps nothing. ``folder``: it writes files of its own into
            ``SessionRequest.engine``, and reads them later. ``model``: it writes :data:`COMPILED_MODEL`
            there, which is opened in place of the model.
        library: file to register with ``onnxruntime.register_execution_provider_library``; None: ONNX Runtime
            has the provider.
        devices: which of ONNX Runtime's devices of that library to use; all of one kind, at least one.
    """

    provider: str
    look: Callable[[], Hardware]
    options: Callable[[SessionRequest], Mapping[str, str]] = _no_options
    entries: Callable[[SessionRequest], Mapping[str, str]] = _no_options
    engine: Literal["none", "folder", "model"] = "none"
    library: Callable[[], Path] | None = None
    devices: Callable[[Sequence[Any]], Sequence[Any]] = _all


@dataclass(frozen=True)
class Provider:
    """How one model is run.

    Attributes:
        name: of ONNX Runtime's provider, or the entry point of a package.
        package: where it comes from; None: ONNX Runtime has it.
        options: of the device's owner (``infer.options``), as pairs; lichen's own win.
        engine: folder of the compiled model.
        compiling: the engine is being written.
    """

    name: str = CPU
    package: Package | None = None
    options: tuple[tuple[str, str], ...] = ()
    engine: Path | None = None
    compiling: bool = False

    @property
    def on_cpu(self) -> bool:
        """Whether it is ONNX Runtime's own processor provider, which needs nothing."""
        return self.name == CPU

    def header(self) -> dict[str, Any]:
        """For a request to a model's process; the values are hashable."""
        package = None if self.package is None else self.package.model_dump_json()
        engine = None if self.engine is None else str(self.engine.absolute())
        options = tuple(self.options)
        return {
            "provider": self.name,
            "package": package,
            "options": options,
            "engine": engine,
            "compiling": self.compiling,
        }

    @classmethod
    def of(cls, header: Mapping[str, Any]) -> "Provider":
        """From :meth:`header`."""
        package, engine = header.get("package"), header.get("engine")
        return cls(
            str(header.get("provider", CPU)),
            None if package is None else Package.model_validate_json(package),
            tuple((str(key), str(value)) for key, value in header.get("options", ())),
            None if engine is None else Path(engine),
            bool(header.get("compiling")),
        )


ON_CPU: Final = Provider()
