"""Checks in a child process, which may die of a signal, that ONNX Runtime works and a model loads.

``python -P -m edge_agent.inference.onnx_models.probe`` imports it; with a model's folder, or the file of an
encoder model, it also runs zeros through it. If that takes all memory, the kernel ends the child and not the
agent. onnxruntime has shipped wheels that die with SIGILL on a Raspberry Pi 4.
"""

import asyncio
import contextlib
import signal
import sys
from pathlib import Path
from typing import Final

from protocol.errors import LichenError
from runtime.process.worker import status_words

TIMEOUT_S: Final = 60.0
_OOM: Final = Path("/proc/self/oom_score_adj")
_CRASHES: Final = (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGABRT, signal.SIGTRAP)
"""Signals of a library that does not run on this machine. Others (SIGKILL, SIGTERM) come from outside."""


async def onnxruntime_error(model: Path | None = None, *, python: str = sys.executable) -> str:
    """Empty if ONNX Runtime imports (and the model or encoder model runs), else the reason."""
    args = [] if model is None else [str(model)]
    process = await asyncio.create_subprocess_exec(
        python,
        "-P",
        "-m",
        "edge_agent.inference.onnx_models.probe",
        *args,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(TIMEOUT_S):
            _, said = await process.communicate()
    except TimeoutError:
        return f"onnxruntime did not answer in {TIMEOUT_S:g} s"
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return words(process.returncode or 0, said.decode(errors="replace"), loading=model is None)


def words(status: int, said: str, *, loading: bool = False) -> str:
    """Text for a probe's end.

    Args:
        status: exit status, negative for a signal.
        said: its last output.
        loading: it had no model yet, so only the library can have failed.
    """
    if status == 0:
        return ""
    last = said.strip().splitlines()[-1][:500] if said.strip() else "it said nothing"
    if -status == signal.SIGILL:
        return (
            "onnxruntime dies with SIGILL: this wheel uses instructions that the processor lacks; "
            "install another version of onnxruntime"
        )
    if status < 0:
        how = f"onnxruntime {status_words(status)}" + (f": {last}" if said.strip() else "")
        crashed = loading and -status in _CRASHES
        return f"{how}; install another version of onnxruntime, an older one first" if crashed else how
    if "No module named 'onnxruntime'" in said:
        return "onnxruntime is not installed: pip install 'lichen[infer]'"
    return last


def main(args: list[str]) -> int:
    """Entry point of the child."""
    with contextlib.suppress(OSError):
        _OOM.write_text("1000", encoding="ascii")  # the first process that the kernel kills for memory
    import onnxruntime  # noqa: F401, PLC0415 - the import is what is probed

    if args:
        from edge_agent.inference.serving.confinement import confine  # noqa: PLC0415 - only in the child

        path = Path(args[0]).absolute()
        confine(path)
        try:
            _try(path)
        except LichenError as error:
            sys.stderr.write(f"{error}\n")
            return 1
    return 0


def _try(path: Path) -> None:
    from edge_agent.inference.onnx_models.encoder_model import EncoderModel  # noqa: PLC0415 - only in the child that loads one
    from edge_agent.inference.onnx_models.loader import load  # noqa: PLC0415 - as above

    loaded = load(path, threads=1) if path.is_dir() else EncoderModel(path.read_bytes())
    loaded.try_once()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
