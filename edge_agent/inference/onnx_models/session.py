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

from edge_agent.inference.onnx_models.compatibility import MODEL_FILE, PRESENT
from edge_agent.inference.providers.kinds import (
    COMPILED_MODEL,
    CPU,
    MAX_ROWS,
    ON_CPU,
    Provider,
    ProviderKind,
    SessionRequest,
)
from edge_agent.inference.providers.loading import devices_of, load_kind
from models.backbones.graph_safety import require_safe_model
from models.backbones.session_options import session_options
from protocol.bundle import BundleManifest
from protocol.errors import LichenError, Reason, Refused, Transient
from protocol.frames.frame import digest

PASSING: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EINTR})
"""Errors of the system, not of a file."""
_MFD_NOEXEC_SEAL: Final = 0x8
"""Python 3.11 has no name for it."""


def open_session(
    folder: Path, manifest: BundleManifest, threads: int, file: str = MODEL_FILE, provider: Provider = ON_CPU
) -> Any:
    """The inference session of an unpacked bundle.

    Args:
        folder: an unpacked bundle.
        manifest: of it.
        threads: of ONNX Runtime.
        file: which of its models (``BundleManifest.variants``).
        provider: runs supported operators; the CPU runs the rest.

    Raises:
        Refused: the file differs from the manifest, is unsafe (``graph_safety``), does not load, or the
            provider may not or cannot run it here.
        Transient: it cannot be read now (too many open files, no memory); the file may be valid.
    """
    path = folder / file
    if file not in manifest.files:
        raise Refused(Reason.MALFORMED, f"{path} is not in its manifest")
    with _sealed(path) as sealed:
        _require(sealed, manifest.files[file].digest, path)
        model = Path(f"/proc/self/fd/{sealed}")
        if provider.on_cpu:
            return _session(str(model), str(path), threads)
        shapes = {m.name: (m.channels, manifest.samples.get(m.name, 0)) for m in manifest.modalities}
        asked = SessionRequest(
            provider.engine,
            provider.compiling,
            {**shapes, PRESENT: (len(manifest.modalities),)},
            MAX_ROWS,
            model,
        )
        return _accelerated(asked, str(path), threads, provider)


def _accelerated(asked: SessionRequest, what: str, threads: int, provider: Provider) -> Any:
    """The session of a provider other than the CPU; it is asked to compile, or reads what it compiled."""
    kind, model, compiled = load_kind(provider), asked.model, None
    if kind.engine == "model" and asked.engine is not None:
        compiled = asked.engine / COMPILED_MODEL
        if not asked.compiling:
            model = compiled  # made of a checked model; its hash was checked (``providers.engine_cache``)
    with _refusals(f"{what} on {provider.name}"):
        session = _provided(str(model), kind, asked, threads, provider)
    if (first := session.get_providers()[0]) != kind.provider:  # ONNX Runtime falls back without an error
        raise Refused(Reason.MALFORMED, f"{what} is run by {first}: {kind.provider} does not work here")
    if asked.compiling and compiled is not None and not compiled.is_file():
        raise Refused(Reason.MALFORMED, f"{provider.name} wrote no compiled model of {what}")
    return session


def _provided(model: str, kind: ProviderKind, asked: SessionRequest, threads: int, provider: Provider) -> Any:
    import onnxruntime  # noqa: PLC0415 - an optional part, and slow to import

    options = session_options(threads)
    for entry in kind.entries(asked).items():
        options.add_session_config_entry(*entry)
    settings = {**dict(provider.options), **kind.options(asked)}
    if kind.library is not None:
        options.add_provider_for_devices(devices_of(kind), settings)
        return onnxruntime.InferenceSession(model, options)
    first = [] if kind.provider == CPU else [(kind.provider, settings)]
    return onnxruntime.InferenceSession(model, options, providers=[*first, CPU])


def open_file(path: Path, wanted: str, threads: int) -> Any:
    """The inference session of a model in a file, on the CPU.

    Args:
        path: of the file.
        wanted: its SHA-256.
        threads: of ONNX Runtime.

    Raises:
        Refused, Transient: as :func:`open_session`.
    """
    with _sealed(path) as sealed:
        _require(sealed, wanted, path)
        return _session(f"/proc/self/fd/{sealed}", path.name, threads)


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
    return _session(data, what, threads)


def _session(model: str | bytes, what: str, threads: int) -> Any:
    import onnxruntime  # noqa: PLC0415 - an optional part, and slow to import

    try:
        return onnxruntime.InferenceSession(model, session_options(threads), providers=[CPU])
    except onnx_errors() as error:
        raise Refused(Reason.MALFORMED, f"{what} does not load: {error}"[:500]) from None


@contextmanager
def _refusals(what: str) -> Iterator[None]:
    """Errors of a provider, and of a package's code, as Refused."""
    try:
        yield
    except LichenError:
        raise
    except Exception as error:  # noqa: BLE001 - a package's code may raise anything; its words reach the owner
        words = f"{what} does not load: {type(error).__name__}: {error}"
        raise Refused(Reason.MALFORMED, words[:500]) from None


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
