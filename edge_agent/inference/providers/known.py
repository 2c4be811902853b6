"""The providers that ONNX Runtime has: their accelerators, and where those that compile keep the result.

Only OpenVINO was run so far (on a processor); the others follow their documentation (docs/accelerators.md).
"""

import ctypes
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from edge_agent.inference.providers.kinds import (
    COMPILED_MODEL,
    Hardware,
    NoHardware,
    ProviderKind,
    SessionRequest,
)

_NVIDIA_DEVICES: Final = ("nvidia0", "nvidiactl", "nvgpu", "nvhost-gpu", "nvhost-ctrl-gpu")
_TENSORRT_MAJORS: Final = (11, 10, 9, 8)
_RELEASE: Final = "etc/nv_tegra_release"
_MOST: Final = 4096


def kind_of(provider: str) -> ProviderKind:
    """What is known of one of ONNX Runtime's providers; of an unknown one, that it keeps nothing."""
    return KNOWN.get(provider) or ProviderKind(provider, lambda: Hardware(""))


def nvidia(root: Path = Path("/")) -> Hardware:
    """An NVIDIA accelerator, by its driver's files.

    Raises:
        NoHardware: there is no device file.
    """
    if not any((root / "dev" / name).exists() for name in _NVIDIA_DEVICES):
        raise NoHardware("no NVIDIA device file in /dev: is the driver loaded, and may the service see it?")
    boards = sorted((root / "proc/driver/nvidia/gpus").glob("*/information"))
    named = [_value(line) for file in boards for line in _lines(file) if line.startswith("Model:")]
    device = ", ".join(named) or " ".join(_lines(root / "proc/device-tree/model")) or "NVIDIA"
    versions = {
        "driver": "".join(_lines(root / "proc/driver/nvidia/version")[:1]),
        "l4t": "".join(_lines(root / _RELEASE)[:1]),
        "tensorrt": _tensorrt(),
    }
    return Hardware(device, {name: words for name, words in versions.items() if words})


def processor(root: Path = Path("/")) -> Hardware:
    """The processor, and graphics devices beside it."""
    wanted = ("model name", "CPU part", "Hardware")
    named = [_value(line) for line in _lines(root / "proc/cpuinfo") if line.startswith(wanted)]
    graphics = sorted(path.name for path in (root / "dev/dri").glob("renderD*"))
    return Hardware(" ".join([*named[:1], *graphics]) or "unknown processor")


def _lines(file: Path) -> list[str]:
    try:
        with file.open(encoding="utf-8", errors="replace") as text:
            return text.read(_MOST).replace("\0", "").splitlines()
    except OSError:
        return []


def _value(line: str) -> str:
    return line.partition(":")[2].strip()


def _tensorrt() -> str:
    """The version of TensorRT's library; empty if none is found."""
    for major in _TENSORRT_MAJORS:
        with suppress(OSError, AttributeError):
            return str(ctypes.CDLL(f"libnvinfer.so.{major}").getInferLibVersion())
    return ""


def _tensorrt_options(asked: SessionRequest) -> Mapping[str, str]:
    """Without profiles it would compile again for each new number of windows."""
    profiles = {
        f"trt_profile_{what}_shapes": ",".join(_shapes(asked, rows))
        for what, rows in (("min", 1), ("opt", 1), ("max", asked.max_rows))
    }
    if asked.engine is None:
        return profiles
    return profiles | {"trt_engine_cache_enable": "1", "trt_engine_cache_path": str(asked.engine)}


def _shapes(asked: SessionRequest, rows: int) -> Iterator[str]:
    for name, shape in asked.shapes.items():
        yield f"{name}:{'x'.join(map(str, (rows, *shape)))}"


def _openvino_options(asked: SessionRequest) -> Mapping[str, str]:
    return {} if asked.engine is None else {"cache_dir": str(asked.engine)}


def _coreml_options(asked: SessionRequest) -> Mapping[str, str]:
    return {} if asked.engine is None else {"ModelCacheDirectory": str(asked.engine)}


def _context_entries(asked: SessionRequest) -> Mapping[str, str]:
    """ONNX Runtime's own way to save what a provider compiled: a model with one node."""
    if asked.engine is None or not asked.compiling:
        return {}
    return {
        "ep.context_enable": "1",
        "ep.context_embed_mode": "1",
        "ep.context_file_path": str(asked.engine / COMPILED_MODEL),
    }


KNOWN: Final = {
    kind.provider: kind
    for kind in (
        ProviderKind("TensorrtExecutionProvider", nvidia, _tensorrt_options, engine="folder"),
        ProviderKind("CUDAExecutionProvider", nvidia),
        ProviderKind("OpenVINOExecutionProvider", processor, _openvino_options, engine="folder"),
        ProviderKind("CoreMLExecutionProvider", processor, _coreml_options, engine="folder"),
        ProviderKind("QNNExecutionProvider", processor, entries=_context_entries, engine="model"),
    )
}
