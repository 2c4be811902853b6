"""Write down which functions a Python process enters, and when: imported by ``site`` at its start.

``LICHEN_CALLS`` names the folder of the traces, ``LICHEN_CALLS_ROOT`` the checkout whose functions count. A
line is ``WALL<TAB>FILE<TAB>FUNCTION``, or ``WALL<TAB>publish<TAB>TOPIC`` for a message that the process
publishes. A function that is entered again within 50 ms gets no second line. Bodies of modules and classes,
comprehensions and lambdas have none.
"""

import os
import sys
import threading
import time
from pathlib import Path
from types import CodeType, FrameType
from typing import Final, TextIO

_FOLDER: Final = os.environ["LICHEN_CALLS"]
_ROOT: Final = os.environ["LICHEN_CALLS_ROOT"].rstrip("/") + "/"
_PACKAGES: Final = ("coordinator/", "edge_agent/", "export/", "lichen/", "models/", "protocol/", "runtime/")
_PAUSE_S: Final = 0.05
_PUBLISH: Final = "paho/mqtt/client.py"
_OPTIMIZED: Final = 0x1
"""``inspect.CO_OPTIMIZED``: the code of a function, not of a class or module."""

_files: dict[int, TextIO] = {}
_names: dict[CodeType, str] = {}
_entered: dict[CodeType, float] = {}


def _file() -> TextIO:
    """One file a process: forked processes inherit this module."""
    pid = os.getpid()
    if pid not in _files:
        _files[pid] = Path(_FOLDER, f"{pid}.calls").open("a", buffering=1)  # noqa: SIM115 - open until the process ends
    return _files[pid]


def _name(code: CodeType) -> str:
    path = code.co_filename
    if code.co_name == "publish" and path.endswith(_PUBLISH):
        return "publish"
    short = path.removeprefix(_ROOT)
    function = code.co_flags & _OPTIMIZED and not code.co_name.startswith("<")
    wanted = function and short != path and short.startswith(_PACKAGES)
    return f"{short}\t{code.co_qualname}" if wanted else ""


def _note(frame: FrameType, event: str, _: object) -> None:
    if event != "call":
        return
    code = frame.f_code
    name = _names.get(code)
    if name is None:
        name = _names[code] = _name(code)
    if not name:
        return
    now = time.time()
    if name == "publish":
        _file().write(f"{now:.4f}\tpublish\t{frame.f_locals.get('topic')}\n")
    elif now - _entered.get(code, 0.0) > _PAUSE_S:
        _entered[code] = now
        _file().write(f"{now:.4f}\t{name}\n")


threading.setprofile(_note)
sys.setprofile(_note)
