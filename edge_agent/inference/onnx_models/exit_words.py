"""Why a process that runs a model has ended.

onnxruntime has shipped wheels that die with SIGILL on a Raspberry Pi 4.
"""

import signal
from typing import Final

from runtime.process.worker import status_words

_CRASHES: Final = (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGABRT, signal.SIGTRAP)
"""Signals of a library that does not run on this machine. Others (SIGKILL, SIGTERM) come from outside."""


def exit_words(status: int, said: str, *, loading: bool = False) -> str:
    """Text for the end of a process.

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
