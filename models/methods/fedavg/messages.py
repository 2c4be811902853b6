"""Data sent besides weights: none. Torch-free."""

from protocol.frames.headers import ExtraMessage


class FedAvgMessage(ExtraMessage):
    """``UpdateHeader.extra`` of a FedAvg update: empty; fields of later releases are ignored."""
