"""What a hostile device sends in the place of its honest update: for benchmarks and tests of the defence.

Each attack takes a real frame and a round, and gives other bytes; the same frame and round give the same.
"""

import random
from collections.abc import Callable, Mapping
from typing import Any, Final

import cbor2
import numpy as np
from numpy.typing import NDArray

from protocol.frames.cbor import SELF_DESCRIBED
from protocol.frames.frame import CRC_BYTES, encode_frame, open_frame, sealed
from protocol.frames.headers import UpdateHeader
from protocol.frames.tensors import Codec, Encoded, decode, encode

Attack = Callable[[bytes, int], bytes]
_PROTOTYPES: Final = "prototypes/"
_ABSURD: Final = 10_000_000


def not_a_number(frame: bytes, round_: int) -> bytes:
    """One value of one model tensor is NaN, or an infinity every other round."""
    header, tensors = open_frame(frame, UpdateHeader)
    name = min(name for name in tensors if not name.startswith(_PROTOTYPES))
    values = decode(tensors[name])
    values.flat[values.size // 2] = np.nan if round_ % 2 else np.inf
    return encode_frame(header, {**tensors, name: _exact(values)})


def flipped(times: float) -> Attack:
    """Reverse the learning: multiply every model delta by ``-times``; prototypes stay."""

    def attack(frame: bytes, _: int) -> bytes:
        header, tensors = open_frame(frame, UpdateHeader)
        turned = {
            name: tensor if name.startswith(_PROTOTYPES) else encode(-times * decode(tensor), Codec.FLOAT32)
            for name, tensor in tensors.items()
        }
        return encode_frame(header, turned)

    return attack


def absurd_counts(frame: bytes, round_: int) -> bytes:
    """A false claim about the data, another each round: negative, too large, contradictory, huge."""
    content = cbor2.loads(frame[len(SELF_DESCRIBED) :])
    header: dict[str, Any] = content[1]
    claims: tuple[Mapping[str, Any], ...] = (
        {"samples": -5},
        {"samples": 2**31 - 1, "weight": 1 << 20},
        {"counts": {name: [_ABSURD] * len(counts) for name, counts in header["counts"].items()}},
        {"weight": 1 << 20},
        {
            "samples": _ABSURD,
            "missing": {},
            "counts": {n: [_ABSURD] + [0] * (len(c) - 1) for n, c in header["counts"].items()},
            "extra": {},
        },
        {
            "samples": _ABSURD,
            "missing": {},
            "counts": {n: [_ABSURD // len(c)] * len(c) for n, c in header["counts"].items()},
        },
    )
    header.update(claims[(round_ - 1) % len(claims)])
    return _sealed_anew(SELF_DESCRIBED + cbor2.dumps(content))


def garbage(frame: bytes, round_: int) -> bytes:
    """Noise, a truncated frame, a frame with changed bytes, or noise with a frame's magic; in turn."""
    rng = random.Random(round_)  # noqa: S311 - the same bytes every time
    noise = rng.randbytes(len(frame))
    changed = bytearray(frame)
    for _ in range(64):
        changed[rng.randrange(len(changed))] = rng.randrange(256)
    kinds = (noise, frame[: len(frame) // 2], _sealed_anew(bytes(changed)), SELF_DESCRIBED + noise)
    return kinds[(round_ - 1) % len(kinds)]


def in_turn(frame: bytes, round_: int) -> bytes:
    """All attacks in turn."""
    kinds = (not_a_number, flipped(100.0), absurd_counts, garbage)
    return kinds[(round_ - 1) % len(kinds)](frame, 1 + (round_ - 1) // len(kinds))


ATTACKS: Final[Mapping[str, Attack]] = {
    "NaN": not_a_number,
    "sign flip x 100": flipped(100.0),
    "absurd counts": absurd_counts,
    "garbage bytes": garbage,
    "all in turn": in_turn,
}


def _sealed_anew(frame: bytes) -> bytes:
    """The bytes with a correct checksum, as a deliberate attacker sends them."""
    return sealed(frame[:-CRC_BYTES])


def _exact(values: NDArray[np.float32]) -> Encoded:
    """Encode float32 directly, because our encoder refuses non-finite values."""
    return Encoded(Codec.FLOAT32, values.shape, np.ascontiguousarray(values, "<f4").tobytes())
