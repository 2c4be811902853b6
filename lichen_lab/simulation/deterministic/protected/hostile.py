"""A device that lies in secure rounds: it forges keys and shares, and replays what was of another attempt."""

import random
from typing import Final

from protocol.errors import Refused
from protocol.secure_aggregation.keys import KEY_BYTES
from protocol.secure_aggregation.messages import (
    SEALED_BYTES,
    KeysAnnounced,
    Revealed,
    SecureMessage,
    SharesSent,
    decode,
    encode,
)
from protocol.secure_aggregation.shamir import SHARE_BYTES

_LIES: Final = 0.5
"""Share of messages that are forged."""


class Forger:
    """What a hostile device sends in the place of its agent's messages.

    Args:
        rng: of the seed.
    """

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._sent: list[SecureMessage] = []

    def payloads(self, payload: bytes) -> list[bytes]:
        """What goes out instead of a message; empty: nothing."""
        try:
            message = decode(payload, SecureMessage)
        except Refused:
            return [payload]
        older, self._sent = self._sent, [*self._sent[-20:], message]
        if self._rng.random() > _LIES:
            return [payload]
        lies = [self._forged(message)]
        if older and self._rng.random() < 0.5:  # noqa: PLR2004 - of the lies
            old = self._rng.choice(older)
            again = old.model_copy(update={"attempt": message.attempt}) if self._rng.random() < 0.5 else old  # noqa: PLR2004 - of them
            lies.append(again)
        self._rng.shuffle(lies)
        return [encode(one) for one in lies] + ([payload] if self._rng.random() < 0.5 else [])  # noqa: PLR2004 - of the lies

    def _forged(self, message: SecureMessage) -> SecureMessage:
        rng = self._rng
        match message:
            case KeysAnnounced():
                one, other = rng.choice(((0, 1), (0, 0), (2, 1), (0, 2)))
                keys = (rng.randbytes(KEY_BYTES), rng.randbytes(KEY_BYTES), bytes(KEY_BYTES))
                forged = {"cipher": keys[one], "mask": keys[other]}
                return message.model_copy(update={"keys": message.keys.model_copy(update=forged)})
            case SharesSent():
                names = list(message.sealed)
                sealed = dict(message.sealed)
                match rng.choice(("all", "one", "moved", "fewer")):
                    case "all":
                        sealed = {name: rng.randbytes(SEALED_BYTES) for name in names}
                    case "one":
                        sealed[rng.choice(names)] = rng.randbytes(SEALED_BYTES)
                    case "moved":
                        sealed = dict(zip(names, [*list(sealed.values())[1:], sealed[names[0]]], strict=True))
                    case _:
                        del sealed[rng.choice(names)]
                return message.model_copy(update={"sealed": sealed})
            case Revealed():
                known = {**message.seeds, **message.masks}
                made = {name: rng.randbytes(SHARE_BYTES) for name in known}
                match rng.choice(("all", "both", "sides")):
                    case "all":
                        seeds = {name: made[name] for name in message.seeds}
                        masks = {name: made[name] for name in message.masks}
                    case "both":
                        seeds, masks = known, known
                    case _:
                        seeds, masks = dict(message.masks), dict(message.seeds)
                return message.model_copy(update={"seeds": seeds, "masks": masks})
            case _:
                return message
