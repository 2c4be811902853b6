"""Shared by both daemons: MQTT link, durable files, child processes, supervision, settings, clock, logs."""

import os
import sys

# No daemon uses plugins of pydantic; the search for them reads the metadata of every package.
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
if "rich" not in sys.modules:
    # structlog imports rich if it is installed, for tracebacks that no daemon prints: 50 modules and 4 MB
    # on a device. Hidden while structlog loads; a command that prints tables imports it afterwards as usual.
    sys.modules["rich"] = None  # type: ignore[assignment]
    try:
        import structlog  # noqa: F401 - loaded here first, for the reason above
    finally:
        del sys.modules["rich"]
