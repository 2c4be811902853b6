"""lichen from Python: ``lichen.simulate``, ``lichen.Fleet`` (docs/python.md). Also the ``lichen`` command.

Imports the packages below lazily: daemons and small programs load this file, too.
"""

import os
from importlib import import_module
from typing import Any, Final

# ONNX Runtime's wheels send usage data to their maker unless this is set before the library is loaded.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

_PLACES: Final = {
    "Fleet": "lichen.api.fleet",
    "LichenError": "protocol.errors",
    "Misconfigured": "protocol.errors",
    "Refused": "protocol.errors",
    "Rows": "lichen.api.rows",
    "Simulation": "lichen.api.simulation",
    "Transient": "protocol.errors",
    "package": "lichen.api.simulation",
    "simulate": "lichen.api.simulation",
}
"""Name -> the module that has it. ``__init__.pyi`` tells type checkers the same."""


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'lichen' has no attribute {name!r}")
    return getattr(import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_PLACES})
