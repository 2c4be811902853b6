"""The cohort of a round: which devices one offer to the whole fleet asks. Pure.

Every device has a place of 64 bits: HMAC-SHA256 of its name, keyed with the salt of the round. Devices whose
place is below a threshold take part, or those whose place is in a list of the offer. Coordinator and devices
compute the same, so no message names a device, and a device that was away finds out when it comes back.

The list holds the first 4 bytes of each place, so a device that was not chosen is in a list of 10,000 with a
probability of 2 in a million; the coordinator then refuses its update.
"""

import base64
import binascii
import hashlib
import hmac
from collections.abc import Iterable
from typing import Annotated, Final

import numpy as np
from pydantic import Field

from protocol.base import Wire
from protocol.errors import Reason, Refused

PLACE_BITS: Final = 64
EVERYBODY: Final = "1" + "0" * 16
"""The threshold, in hexadecimal, that all places are below."""
MAX_MEMBERS: Final = 16_384
"""Maximum number of devices in one list: 88 kB of an offer."""
_MEMBER: Final = np.dtype(">u4")
_MAX_TEXT: Final = 4 * -(-MAX_MEMBERS * _MEMBER.itemsize // 3)

Salt = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
Threshold = Annotated[str, Field(pattern=r"^(0[0-9a-f]{16}|10{16})$")]
"""A number of 65 bits at most, in 17 hexadecimal digits; places below it take part."""
Members = Annotated[str, Field(max_length=_MAX_TEXT)]
"""Places as base64 of 4-byte numbers, big-endian and ascending."""


def salt_of(*parts: int | str) -> str:
    """The salt of a round: from the task's seed, the round and its base, which nobody knows before."""
    return hashlib.sha256("/".join(map(str, parts)).encode()).hexdigest()[:32]


def place(salt: str, device: str) -> int:
    """A device's place in a round, from 0 to 2**64 - 1."""
    return int.from_bytes(_mac(salt, f"place/{device}"), "big")


def moment(salt: str, device: str) -> float:
    """When a device begins, as a share of the time in which devices are to begin: in [0, 1).

    It does not depend on the place, and is the same after a restart.
    """
    return (int.from_bytes(_mac(salt, f"moment/{device}"), "big") >> 11) / 2.0**53


def _mac(salt: str, text: str) -> bytes:
    return hmac.digest(bytes.fromhex(salt), text.encode(), "sha256")[: PLACE_BITS // 8]


def threshold(below: int) -> str:
    """A threshold, as text."""
    return f"{below:017x}"


def is_below(salt: str, device: str, below: str) -> bool:
    """Whether a device's place is below a threshold; an empty one has no places below it."""
    return below == EVERYBODY or (below != "" and place(salt, device) < int(below, 16))


def pack(salt: str, devices: Iterable[str]) -> str:
    """The list of some devices' places.

    Raises:
        ValueError: there are more than ``MAX_MEMBERS``.
    """
    places = sorted({place(salt, device) >> 32 for device in devices})
    if len(places) > MAX_MEMBERS:
        raise ValueError(f"{len(places)} devices: a list has at most {MAX_MEMBERS}")
    return base64.b64encode(np.array(places, _MEMBER).tobytes()).decode()


def is_member(salt: str, device: str, members: str) -> bool:
    """Whether a device is in a list.

    Raises:
        Refused: MALFORMED: the text is no such list.
    """
    try:
        data = base64.b64decode(members.encode(), validate=True)
        places = np.frombuffer(data, _MEMBER)
    except (ValueError, binascii.Error):
        raise Refused(Reason.MALFORMED, "members: no base64 of 4-byte numbers") from None
    own = place(salt, device) >> 32
    at = int(np.searchsorted(places, own))
    return at < len(places) and int(places[at]) == own


class Cohort(Wire):
    """The devices that an offer asks: every device, with neither ``below`` nor ``members``."""

    salt: Salt = "0" * 32
    """Of the round: the key of places and moments."""
    below: Threshold | None = None
    """Devices with a place below it take part."""
    members: Members | None = None
    """The places of the devices that take part."""
    delivered: Members | None = None
    """From the second attempt on: the places of the devices whose update is counted. A device that has a
    receipt and is not among them sends again. Absent if there are too many."""

    def asks(self, device: str) -> bool:
        """Whether a device is in the cohort.

        Raises:
            Refused: MALFORMED: the list of members cannot be read.
        """
        if self.members is not None:
            return is_member(self.salt, device, self.members)
        return self.below is None or is_below(self.salt, device, self.below)

    def has_lost(self, device: str) -> bool:
        """Whether an accepted update of an earlier attempt is not counted any more.

        Raises:
            Refused: MALFORMED: the list of devices cannot be read.
        """
        return self.delivered is not None and not is_member(self.salt, device, self.delivered)
