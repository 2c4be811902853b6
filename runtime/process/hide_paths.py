"""Starts a module that cannot open some paths: ``python -P -m runtime.process.hide_paths PATHS MODULE ARGS``.

PATHS is a list in JSON. They are hidden before the module is imported, while there is one thread (Landlock).
"""

import json
import runpy
import sys
from pathlib import Path

from runtime.process import landlock


def main() -> None:
    """Give up access to the paths, if any exists, and run the module."""
    hidden = [Path(path) for path in json.loads(sys.argv[1])]
    sys.argv = sys.argv[2:]
    if any(path.exists() for path in hidden):
        try:
            landlock.hide(hidden)
        except OSError as error:
            sys.stderr.write(f"this process may read the secrets of its daemon: {error}\n")
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
