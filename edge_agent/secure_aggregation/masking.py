"""A device's vector with the masks of a plan. NumPy; takes tens of milliseconds for a large model."""

from edge_agent.secure_aggregation.events import MaskUpdate
from protocol.secure_aggregation.masks import add_mask
from protocol.secure_aggregation.ring import Words, packed


def masked_vector(vector_N: Words, plan: MaskUpdate, ring_bits: int) -> bytes:
    """The packed vector with all masks; the argument stays as it is.

    Args:
        vector_N: of the device's own update.
        plan: the keys of the masks.
        ring_bits: of the task.
    """
    total_N = vector_N.copy()
    add_mask(total_N, plan.own)
    for key in plan.added:
        add_mask(total_N, key)
    for key in plan.subtracted:
        add_mask(total_N, key, minus=True)
    return packed(total_N, ring_bits)
