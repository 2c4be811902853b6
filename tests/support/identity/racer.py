"""A process that uses tokens at given moments: ``identity_racer STATE_DIR KEY``.

It prints ``ready``, reads one line of JSON, ``{"start": monotonic seconds, "step": seconds, "tokens":
{...}}`` (token -> the name to claim), and prints the result of each, in order.
"""

import json
import sys
import time
from pathlib import Path

from coordinator.identity.store import IdentityStore
from protocol.errors import Refused


def main() -> None:
    folder, key = sys.argv[1:]
    with IdentityStore(Path(folder)) as book:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        plan = json.loads(sys.stdin.readline())
        for n, (token, device) in enumerate(plan["tokens"].items()):
            while time.monotonic() < plan["start"] + n * plan["step"]:
                pass
            try:
                sys.stdout.write(f"{book.claim(token, device, key)[0]}\n")
            except Refused as refused:
                sys.stdout.write(f"{refused.reason.value}\n")


if __name__ == "__main__":
    main()
