"""ONNX Runtime's inference sessions, of exactly the bytes that ``graph_safety`` checked.

All models from the network are opened here, in servants (``edge_agent.inference.serving``).

A model's file is copied into anonymous memory, which the kernel then seals: nobody can change it any more,
not even this process. That copy is checked, compared with the manifest, and handed on; the file on the disk
is not opened again. ONNX Runtime reads it as a file, so a model of 36 MB has the same peak memory as one
opened by its path, and half as much less than one given as Python's bytes.
"""

import errno
import fcntl
import mmap
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from edge_agent.inference.onnx_models.compatibility import MODEL_FILE
from edge_agent.inference.onnx_models.graph_safety import require_safe_model
from protocol.bundle import BundleManifest
from protocol.errors import Reason, Refused, Transient
from protocol.frames.frame import digest

CPU: Final = "CPUExecutionProvider"
PASSING: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EINTR})
"""Errors of the system, not of a file."""
_MFD_NOEXEC_SEAL: Final = 0x8
"""Python 3.11 has no name for it."""
_FORMAT: Final = ("session.load_model_format", "ONNX")
"""Otherwise the first bytes, or the file name's ending, may select ONNX Runtime's own format, which is not
checked."""


def open_session(
    folder: Path, manifest: BundleManifest, threads: int, file: str = MODEL_FILE, provider: str = CPU
) -> Any:
    """The inference session of an unpacked bundle.

    Args:
        folder: an unpacked bundle.
        manifest: of it.
        threads: of ONNX Runtime.
        file: which of its models (``BundleManifest.variants``).
        provider: runs supported operators; the CPU runs the rest.

    Raises:
        Refused: the file differs from the manifest, is unsafe (``graph_safety``), does not load, or ONNX
            Runtime has no such provider here.
        Transient: it cannot be read now (too many open files, no memory); the file may be valid.
    """
    path = folder / file
    if file not in manifest.files:
        raise Refused(Reason.MALFORMED, f"{path} is not in its manifest")
    with _sealed(path) as sealed:
        _require(sealed, manifest.files[file].digest, path)
        session = _session(f"/proc/self/fd/{sealed}", str(path), threads, provider)
    if (first := session.get_providers()[0]) != provider:  # ONNX Runtime falls back without an error
        raise Refused(Reason.MALFORMED, f"{path} is run by {first}: {provider} does not work here")
    return session


def session_of(data: bytes, what: str, threads: int) -> Any:
    """The inference session of a serialized model, on the CPU; it keeps the bytes.

    Args:
        data: of the model; small.
        what: its name in messages.
        threads: of ONNX Runtime.

    Raises:
        Refused: it is unsafe (``graph_safety``), or does not load.
    """
    require_safe_model(data, what)
    return _session(data, what, threads, CPU)


def _session(model: str | bytes, what: str, threads: int, provider: str) -> Any:
    import onnxruntime  # noqa: PLC0415 - an optional part, and slow to import

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.enable_cpu_mem_arena = False  # an arena keeps the memory of the largest run
    options.log_severity_level = 3
    options.add_session_config_entry(*_FORMAT)
    try:
        return onnxruntime.InferenceSession(
            model, options, providers=[provider] if provider == CPU else [provider, CPU]
        )
    except onnx_errors() as error:
        raise Refused(Reason.MALFORMED, f"{what} does not load: {error}"[:500]) from None


def _memory_file() -> int:
    """Descriptor of a file in memory that can be sealed and never executed.

    A kernel may be set to refuse any other (``vm.memfd_noexec``); one before 6.3 does not know the flag.

    Raises:
        OSError: no memory, or no descriptor.
    """
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    try:
        return os.memfd_create("model", flags | _MFD_NOEXEC_SEAL)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    return os.memfd_create("model", flags)


@contextmanager
def _sealed(path: Path) -> Iterator[int]:
    """Descriptor of a copy of a file in memory that nobody can change."""
    try:
        fd = _memory_file()
        try:
            with path.open("rb") as file, os.fdopen(fd, "wb", closefd=False) as copy:
                shutil.copyfileobj(file, copy, 1 << 20)
            seals = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
        except BaseException:
            os.close(fd)
            raise
    except OSError as error:
        if error.errno in PASSING:
            raise Transient(f"{path}: {error}"[:500]) from None
        raise Refused(Reason.MALFORMED, f"{path}: {error}"[:500]) from None
    try:
        yield fd
    finally:
        os.close(fd)


def _require(fd: int, wanted: str, path: Path) -> None:
    if not os.fstat(fd).st_size:
        raise Refused(Reason.MALFORMED, f"{path} is empty")
    # Private, though nobody writes: kernels before 6.7 share no page of a file that is sealed from writing.
    data = memoryview(mmap.mmap(fd, 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ))
    if digest(data) != wanted:
        raise Refused(Reason.WRONG_DIGEST, f"{path} is not what its manifest says")
    require_safe_model(data, str(path))


def onnx_errors() -> tuple[type[Exception], ...]:
    """ONNX Runtime's exceptions: they have no common base but Exception, so they are listed."""
    from onnxruntime.capi import onnxruntime_pybind11_state as state  # noqa: PLC0415 - an optional part

    names = ("Fail", "InvalidArgument", "InvalidGraph", "InvalidProtobuf", "NoSuchFile", "NotImplemented")
    more = ("RuntimeException", "EPFail", "NoModel", "EngineError", "ModelLoaded")
    found = [getattr(state, name) for name in (*names, *more) if hasattr(state, name)]
    return (*found, RuntimeError, ValueError)
