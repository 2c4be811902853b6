"""Faults of single messages, drawn from a seed."""

import random
from dataclasses import dataclass, field


@dataclass
class MessageFaults:
    """Odds (0 to 1) for each message on each hop. All may be changed while the world runs.

    Args:
        seed: decides every draw.
        delay_s: a hop takes between a tenth of this and this.
        slow: odds of a hop that takes up to ``slow_s``; what follows on the connection waits behind it.
        duplicate: delivered twice (QoS 1 is at least once).
        reorder: does not wait for what was sent before it on the connection.
        corrupt: some bits of the payload flip.
        cut: the connection breaks; the message is lost where it is.
        lose: the broker acknowledges it and drops it for one subscriber (a queue that was full).
    """

    seed: int | str = 0
    delay_s: float = 0.02
    slow: float = 0.0
    slow_s: float = 3.0
    duplicate: float = 0.0
    reorder: float = 0.0
    corrupt: float = 0.0
    cut: float = 0.0
    lose: float = 0.0
    will_at_takeover: bool = False
    """Brokers differ: Mosquitto drops the will of a session that is taken over, others publish it."""
    overruns: bool = False
    """The broker ignores Receive Maximum (Mosquitto 2.0.11 does)."""
    happened: dict[str, int] = field(default_factory=dict)
    """Kind -> number of drawn faults."""

    def __post_init__(self) -> None:
        self.random = random.Random(f"weather {self.seed}")  # noqa: S311 - a seed, not a secret

    def calm(self) -> None:
        """From now on every message arrives once, whole and in order."""
        self.slow = self.duplicate = self.reorder = self.corrupt = self.cut = self.lose = 0.0

    def takes(self) -> float:
        """Seconds for one hop."""
        draw = self.random.random
        if self.slow and self.strikes("slow", self.slow):
            return draw() * self.slow_s
        return self.delay_s * (0.1 + 0.9 * draw())

    def strikes(self, kind: str, odds: float) -> bool:
        """Draw whether a fault happens now, and count it."""
        if not odds or self.random.random() >= odds:
            return False
        self.happened[kind] = self.happened.get(kind, 0) + 1
        return True

    def damaged(self, payload: bytes) -> bytes:
        """The payload with one to eight bits flipped; an empty one stays."""
        data = bytearray(payload)
        if data:
            for _ in range(self.random.randint(1, 8)):
                data[self.random.randrange(len(data))] ^= 1 << self.random.randrange(8)
        return bytes(data)
