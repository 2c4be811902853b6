"""Errors sorted by who must act (docs/exit-codes.md).

``Refused``: the peer; answer, count, go on. ``Transient``: nobody; wait and try again. ``Misconfigured``: the
operator; exit 78 and do not restart. Anything else is a bug: crash and restart.
"""

from enum import StrEnum


class LichenError(Exception):
    """Base of all errors that lichen raises on purpose."""


class Reason(StrEnum):
    """Why something from a peer was refused: stable words, counted by device."""

    MALFORMED = "malformed"  # not decodable: a lying length, a wrong type, an unknown codec
    TOO_LARGE = "too_large"  # beyond a bound
    WRONG_DIGEST = "wrong_digest"  # bytes differ from their announced SHA-256
    UNKNOWN_KIND = "unknown_kind"  # a message or topic of another release: left aside, and counted
    UNKNOWN_TASK = "unknown_task"
    UNKNOWN_DEVICE = "unknown_device"
    WRONG_DEVICE = "wrong_device"  # the topic's device and the header's differ
    WRONG_ROUND = "wrong_round"  # closed, or not yet open
    WRONG_BASE = "wrong_base"  # trained on another version
    NOT_SELECTED = "not_selected"
    WRONG_MODALITY = "wrong_modality"
    WRONG_TENSORS = "wrong_tensors"  # names or shapes differ from the model's
    NON_FINITE = "non_finite"  # NaN or infinity
    OUT_OF_BOUNDS = "out_of_bounds"  # finite but absurd
    DUPLICATE = "duplicate"  # the same (round, device) with other bytes
    FULL = "full"  # no room: storage or a bounded queue
    OUTLIER = "outlier"  # sound by itself, but far outside the round's own distribution
    QUARANTINED = "quarantined"  # refused too often: ignored for a time
    REVOKED = "revoked"  # its certificate was revoked
    UNTRUSTED = "untrusted"  # not signed by an authorised key, or not what was signed
    ROLLED_BACK = "rolled_back"  # older than what is trusted already
    EXPIRED = "expired"  # signed, but too long ago
    BAD_INVITE = "bad_invite"  # a token that is unknown, used, expired or for another device


class Refused(LichenError):  # noqa: N818 - reads as what happened
    """Something from a peer is not accepted.

    Args:
        reason: the stable word that travels and is counted.
        detail: one sentence for a person, naming the field, tensor or topic.
    """

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(f"{reason.value}: {detail}")
        self.reason = reason
        self.detail = detail

    def __reduce__(self) -> tuple[type["Refused"], tuple["Reason", str]]:
        return type(self), (self.reason, self.detail)

    @property
    def words(self) -> str:
        """The message for a command line, without the machine-readable reason."""
        return self.detail or f"refused, and no more is said than {self.reason.value.replace('_', ' ')!r}"


class Transient(LichenError):  # noqa: N818 - see Refused
    """It may work later: the network is away, the worker was killed, a disk is full."""


class Misconfigured(LichenError):  # noqa: N818 - see Refused
    """Only the operator can correct it. The message names the file, the key, and the value to write."""
