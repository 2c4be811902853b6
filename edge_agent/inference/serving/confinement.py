"""A model's process gives up the access that a model does not need, before it opens one.

Its working folder is empty and has no name. By Landlock (``runtime.process.landlock``) it may read Python,
its libraries, system figures, the model's folder, and the folder of the device's private tensors if the model
is blended with them; nothing else, and write nothing. So a model that exploits ONNX Runtime finds no key of
the device, no secret of the fleet, and no way out by TCP.
"""

import os
import sys
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from edge_agent.inference.providers.kinds import ON_CPU, Provider
from runtime.process import landlock
from runtime.storage.files import make_folder

_OURS: Final = ("edge_agent", "models", "protocol", "runtime")
_SYSTEM: Final = (
    *("/usr", "/lib", "/lib64", "/bin", "/sys"),
    *("/etc/ld.so.cache", "/etc/localtime", "/dev/urandom", "/dev/zero"),
)
"""Not ``/proc``: ONNX Runtime has read the processor's features when it was loaded."""
_WRITTEN: Final = ("/dev/null",)
_OF_PROVIDERS: Final = ("/dev", "/proc")
"""For ONNX Runtime's providers other than the CPU: devices, and the files of their drivers."""
_READ_BY_PROVIDERS: Final = ("/etc/nv_tegra_release", "/etc/OpenCL", "/etc/vulkan")
_PATHS: Final = ("folder", "private")
_LIBRARIES: Final = "LD_LIBRARY_PATH"


def confine(folder: Path | None, private: Path | None = None, provider: Provider = ON_CPU) -> bool:
    """Give up all other access, for good. The process has one thread, and has loaded ONNX Runtime.

    Args:
        folder: absolute, of the model; None: it comes as bytes.
        private: absolute, of the device's own tensors; None: none are read.
        provider: others than the CPU may also use devices and the network, and read the compiled model, or
            write it while they compile.

    Returns:
        False if the kernel has no Landlock: then only the working folder has changed.

    Raises:
        OSError: the kernel refuses.
    """
    if private is not None:
        with suppress(OSError):  # a full disk: then nothing is written there either
            make_folder(private)  # rules need an existing folder, and the first training comes later
    sys.path[:] = [str(Path(entry).absolute()) for entry in sys.path if entry]
    stand_in_an_empty_folder()
    needed = [path for path in (folder, private) if path is not None]
    others, engine = not provider.on_cpu, provider.engine
    if others:
        needed += [*_libraries(), *map(Path, _READ_BY_PROVIDERS), *([] if engine is None else [engine])]
    return landlock.restrict(
        read=[*_code(), *map(Path, _SYSTEM), *needed],
        write=map(Path, (*_WRITTEN, *(_OF_PROVIDERS if others else ()))),
        create=[engine] if engine is not None and provider.compiling else (),
        network=others,
    )


def confine_for(asked: Mapping[str, Any]) -> bool:
    """As :func:`confine`, for a servant's request ``open``."""
    folder, private = (None if asked.get(name) is None else Path(asked[name]) for name in _PATHS)
    return confine(folder, private, Provider.of(asked))


def stand_in_an_empty_folder() -> None:
    """Change to a removed folder: relative names resolve to nothing, and no file can be created."""
    try:
        folder = tempfile.mkdtemp(prefix="lichen-empty-")
    except OSError:  # nothing can be written anywhere
        os.chdir("/")
        return
    os.chdir(folder)
    Path(folder).rmdir()


def _code() -> Iterable[Path]:
    """Folders of Python's modules: some are imported late."""
    for place in {sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix, *sys.path}:
        if Path(place) != Path("/"):
            yield Path(place)
    for name in _OURS:
        spec = find_spec(name)
        yield from map(Path, (spec and spec.submodule_search_locations) or ())


def _libraries() -> Iterable[Path]:
    return (Path(place) for place in os.environ.get(_LIBRARIES, "").split(":") if place.startswith("/"))
