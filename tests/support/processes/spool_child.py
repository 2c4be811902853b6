"""Puts frames into a spool without end, and prints each one for which put() has returned."""

import hashlib
import sys
from pathlib import Path

import numpy as np

from runtime.storage.spool import Spool


def main() -> None:
    spool = Spool(Path(sys.argv[1]), 1 << 30)
    start = max((e.round for e in spool.pending()), default=0)
    for number in range(start + 1, start + 100_000):
        payload = hashlib.sha256(str(number).encode()).digest() * 700
        carry = {"w": np.full(500, number, np.float32)}
        digest = hashlib.sha256(payload).hexdigest()
        spool.put(task="t", round_=number, digest=digest, payload=payload, carry=carry)
        sys.stdout.write(f"{number}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
