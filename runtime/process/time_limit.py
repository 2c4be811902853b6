"""Probes with a time limit: a file system or a resolver that hangs must not hang a command."""

import queue
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

T = TypeVar("T")
SAID_BYTES: Final = 4000


class TookTooLong(Exception):  # noqa: N818 - reads as what happened
    """A probe gave no answer in time."""


@dataclass(frozen=True)
class _Answer(Generic[T]):
    value: T | None
    error: BaseException | None


def run_with_timeout(seconds: float, probe: Callable[[], T]) -> T:
    """What ``probe`` returns or raises.

    The thread is a daemon: one that hangs for ever ends with the process.

    Raises:
        TookTooLong: it did neither in ``seconds``.
    """
    answers: queue.Queue[_Answer[T]] = queue.Queue(1)

    def ask() -> None:
        try:
            answers.put(_Answer(probe(), None))
        except BaseException as error:  # noqa: BLE001 - handed over and raised where the answer is awaited
            answers.put(_Answer(None, error))

    threading.Thread(target=ask, name="probe", daemon=True).start()
    try:
        answer = answers.get(timeout=seconds)
    except queue.Empty:
        raise TookTooLong from None
    if answer.error is not None:
        raise answer.error
    return answer.value  # type: ignore[return-value]  # no error: it is what the probe returned


def child(code: str, seconds: float) -> tuple[int | None, str]:
    """Run Python code in a process of its own, which may die of a signal.

    Returns:
        Its exit status (negative: the signal; None: it took longer than ``seconds`` and was killed), and the
        end of its output.
    """
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", code],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd="/",
    )
    try:
        said, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return None, ""
    return process.returncode, said[-SAID_BYTES:].decode(errors="replace")
