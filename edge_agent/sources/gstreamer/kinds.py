"""The kinds ``camera``, ``microphone`` and ``gstreamer``: what each makes of its settings."""

from collections.abc import Sequence
from pathlib import Path

from edge_agent.sources.base import REGISTRY, SourceKind
from edge_agent.sources.gstreamer.pipelines import camera_job, microphone_job, pipeline_job
from edge_agent.sources.gstreamer.settings import CameraSettings, MicrophoneSettings, PipelineSettings
from edge_agent.sources.gstreamer.source import GStreamer, MediaDevice
from protocol.errors import Misconfigured
from runtime.clock import Clock


def _camera(settings: CameraSettings, known: Sequence[str] | None, clock: Clock) -> GStreamer:
    if settings.url is not None:
        scheme, _, rest = settings.url.partition("://")
        if scheme not in {"rtsp", "rtsps"} or not rest:
            raise Misconfigured("url: it must begin with rtsp:// or rtsps://")
        if "@" in rest:
            raise Misconfigured("url: it has a login; write username and password_file instead")
    what = (settings.url or settings.device or "").partition("?")[0]  # a query may have a key
    file = settings.password_file
    if file is not None:
        _password(file)
    path = Path(what) if what.startswith("/") else None
    device = MediaDevice(
        kind="camera",
        what=what,
        media="image",
        live=True,
        job=lambda shape: camera_job(settings, shape, None if file is None else _password(file)),
        secret=lambda: "" if file is None else _password(file),
        present=lambda: path is None or path.exists(),
    )
    return GStreamer(device, settings, known, clock)


def _microphone(settings: MicrophoneSettings, known: Sequence[str] | None, clock: Clock) -> GStreamer:
    device = MediaDevice(
        kind="microphone",
        what=settings.device,
        media="sound",
        live=True,
        job=lambda shape: microphone_job(settings, shape),
        present=lambda: _card_present(settings.device),
    )
    return GStreamer(device, settings, known, clock)


def _pipeline(settings: PipelineSettings, known: Sequence[str] | None, clock: Clock) -> GStreamer:
    if "user-pw" in settings.pipeline or "@" in settings.pipeline.partition("://")[2].partition("/")[0]:
        raise Misconfigured(
            'pipeline: it has a login; use kind = "camera" with url, username and password_file instead'
        )
    device = MediaDevice(
        kind="gstreamer",
        what=settings.modality,
        media=settings.media,
        live=settings.play == "live",
        job=lambda shape: pipeline_job(settings, shape),
    )
    return GStreamer(device, settings, known, clock)


def _card_present(device: str) -> bool:
    """Whether ALSA has the card ``hw:CARD=Name``; True where the name does not say which card."""
    _, _, rest = device.partition(":CARD=")
    card, folder = rest.partition(",")[0], Path("/proc/asound")
    return not card or "/" in card or not folder.exists() or (folder / card).exists()


def _password(file: Path) -> str:
    """The first line of a password file.

    Raises:
        Misconfigured: it cannot be read.
    """
    try:
        return next(iter(file.read_text().splitlines()), "").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise Misconfigured(f"password_file: {file}: {error}") from None


REGISTRY.add("camera", SourceKind(CameraSettings, _camera))
REGISTRY.add("microphone", SourceKind(MicrophoneSettings, _microphone))
REGISTRY.add("gstreamer", SourceKind(PipelineSettings, _pipeline))
