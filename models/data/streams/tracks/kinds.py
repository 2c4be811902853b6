"""The track of a modality, by its kind."""

from models.data.streams.tracks.frames import FrameTrack
from models.data.streams.tracks.sound import SoundTrack
from models.data.streams.tracks.track import Track
from protocol.tasks.task import Modality, Window


def track_of(modality: Modality, window: Window) -> Track | FrameTrack:
    """An empty track for that modality in such windows."""
    if modality.framed:
        return FrameTrack(modality, window)
    kind = SoundTrack if modality.kind == "sound" else Track
    return kind(modality, window.max_gap_s)
