"""A worker that does what its job folder's ``do`` file says; torch-free. For tests of worker processes."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path


def answer(**what: object) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def do(folder: Path) -> None:
    what = (folder / "do").read_text()
    (folder / "pid").write_text(str(os.getpid()))
    if what == "ok":
        answer(ok=True)
    elif what == "noisy":
        sys.stdout.write("a library prints\n[1, 2]\n{}\n" + "x" * 3_000_000 + "\n")
        answer(ok=True)
    elif what == "shout":
        sys.stderr.write("shout " * 100_000 + "the end")
        sys.stderr.flush()
        answer(ok=False, kind="Fault", error="ValueError: boom")
    elif what == "refuse":
        answer(ok=False, kind="Refused", reason="wrong_tensors", error="head/w has shape (1,)")
    elif what == "misconfigured":
        answer(ok=False, kind="Misconfigured", error="config.lr: must be positive")
    elif what == "killed":
        sys.stderr.write("allocating a lot\n")
        sys.stderr.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    elif what == "exit":
        sys.stderr.write("last words\n")
        sys.stderr.flush()
        os._exit(3)
    elif what == "hang":
        grandchild = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        (folder / "grandchild").write_text(str(grandchild.pid))
        time.sleep(600)
    elif what == "look":
        # Read through the listing: its own descriptor is closed when the link is read.
        links = [link for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
        found = {
            "fds": [str(link.readlink()) for link in links if link.is_symlink()],
            "path": sys.path,
            "env": dict(os.environ),
            "flags": sys.flags.safe_path,
        }
        (folder / "found.json").write_text(json.dumps(found))
        answer(ok=True)


def main() -> None:
    if sys.argv[1:] == ["--serve"]:
        for line in sys.stdin:
            do(Path(json.loads(line)["job"]))
    else:
        do(Path(sys.argv[1]))


if __name__ == "__main__":
    main()
