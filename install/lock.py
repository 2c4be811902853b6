"""Writes ``install/requirements.lock``: the libraries of each extra, pinned, with the hashes of their wheels.

``make lock`` runs it, on Python 3.11 and x86_64. pip-tools resolves once, for all extras together; a line ``#
for: base infer`` above each library names the extras that need it, so that install.sh can install only some.
"""

import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
LOCK = ROOT / "install" / "requirements.lock"
EXTRAS = ("infer", "coordinator", "train", "export", "web", "console")
OPTIONS = ("--generate-hashes", "--strip-extras", "--no-header", "--allow-unsafe", "--quiet")
NO_PLACES = ("--no-emit-index-url", "--no-emit-find-links", "--no-emit-trusted-host")
HEAD = """\
# Written by install/lock.py (make lock). install.sh installs these and nothing else, with --require-hashes.
# Hashes are of all files of a version, for any processor and Python; torch's is of the CPU build alone.
"""


def normal(name: str) -> str:
    """The name as indexes spell it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def resolve() -> str:
    """pip-tools' resolution of pyproject.toml."""
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        # without the readme, which only a build needs
        lines = (ROOT / "pyproject.toml").read_text().splitlines(keepends=True)
        (here / "pyproject.toml").write_text("".join(line for line in lines if not line.startswith("readme")))
        subprocess.run([sys.executable, "-m", "venv", "venv"], cwd=here, check=True)
        subprocess.run(["venv/bin/pip", "install", "-q", "pip-tools"], cwd=here, check=True)
        wanted = [f"--extra={extra}" for extra in EXTRAS]
        words = ["venv/bin/pip-compile", *OPTIONS, *NO_PLACES, *wanted, "-o", "lock", "pyproject.toml"]
        subprocess.run(words, cwd=here, check=True)
        return (here / "lock").read_text()


def blocks(text: str) -> dict[str, tuple[str, set[str]]]:
    """Library -> its lines with the hashes, and the names that require it."""
    found: dict[str, tuple[str, set[str]]] = {}
    for block in re.split(r"\n(?=[A-Za-z0-9])", "\n" + text):
        head = re.match(r"([A-Za-z0-9._-]+)==", block)
        if head is None:
            continue  # comments, and lichen itself
        kept = [line for line in block.splitlines() if not line.lstrip().startswith("#") and line.strip()]
        wants = {normal(word) for word in re.findall(r"#\s+(?:via )?([A-Za-z0-9._-]+)", block)}
        found[normal(head[1])] = ("\n".join(kept).rstrip(" \\"), wants)
    return found


def roots() -> dict[str, set[str]]:
    """Extra -> the libraries that it names itself; our own extras within it are expanded."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = {"base": project["dependencies"], **project["optional-dependencies"]}
    found: dict[str, set[str]] = {}

    def names(extra: str) -> set[str]:
        made: set[str] = set()
        for spec in named[extra]:
            if inner := re.match(r"lichen\[(.+)\]", spec):
                made |= {one for part in inner[1].split(",") for one in names(part)}
            else:
                made.add(normal(re.match(r"[A-Za-z0-9._-]+", spec)[0]))  # type: ignore[index]
        return made

    for extra in ("base", *EXTRAS):
        found[extra] = names(extra)
    return found


def locked(text: str) -> str:
    """The lock: each library once, above it the extras that need it."""
    every = blocks(text)
    extras: dict[str, set[str]] = {name: set() for name in every}
    for extra, first in roots().items():
        waiting = list(first)
        while waiting:
            name = waiting.pop()
            if extra not in extras[name]:
                extras[name].add(extra)
                waiting += [other for other, (_, wants) in every.items() if name in wants]
    order = ("base", *EXTRAS)
    parts = [f"# for: {' '.join(e for e in order if e in extras[n])}\n{every[n][0]}\n" for n in sorted(every)]
    return HEAD + "".join(parts)


if __name__ == "__main__":
    LOCK.write_text(locked(Path(sys.argv[1]).read_text() if len(sys.argv) > 1 else resolve()))
