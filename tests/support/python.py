"""Python programs in a process of their own."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def python(
    *words: str, status: int = 0, cwd: Path = ROOT, timeout: float = 120
) -> subprocess.CompletedProcess[str]:
    """Run ``python -P WORDS``, which finds the packages and tests of this checkout.

    Args:
        words: ``-c CODE`` or ``-m MODULE``, and arguments.
        status: the exit status that it must have.
        cwd: its working folder.
        timeout: seconds until it is killed.
    """
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-P", *words]
    done = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=timeout, check=False
    )
    assert done.returncode == status, (done.stdout + done.stderr)[-6000:]
    return done
