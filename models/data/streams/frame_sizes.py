"""The size of a sample in words: for messages about data that does not fit a modality. Pure."""

from protocol.tasks.task import Modality


def size_of(modality: Modality) -> str:
    """What the task says, as text: ``3 channels``, ``images of 96 x 96 pixels with 3 channels``."""
    channels = f"{modality.channels} channel{'s' if modality.channels > 1 else ''}"
    match modality.kind:
        case "image":
            return f"images of {modality.height} x {modality.width} pixels with {channels}"
        case "vector":
            return f"vectors of {modality.channels} values"
        case "text":
            return f"texts in {modality.channels} buckets"
        case _:
            return channels


def size_mismatch(modality: Modality, values: int) -> str:
    """Samples of another number of values than the task's, as text."""
    name = f"modality {modality.name!r}"
    if not modality.framed:
        return f"{name} has {values} channels, the task says {modality.channels}"
    found = (
        f"{values} values a frame, not {modality.sample_values}" if modality.height else f"{values} values"
    )
    return f"{name} has {found}, the task says {size_of(modality)}"
