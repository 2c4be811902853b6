"""The reading process from the agent's side: start, packets, errors in words, end.

Whatever the process sends is bounded: a packet is at most one frame, its words 2 kB; of its error output only
the end is stored.
"""

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Final, NoReturn

from edge_agent.media.job import Job
from edge_agent.media.packets import BadStream, MediaPacket, PacketKind, PacketReader
from edge_agent.sources.reader_thread import ThreadOutlet
from protocol.errors import Transient
from runtime.diagnosis.redaction import redacted
from runtime.text import one_line

_READ_BYTES: Final = 1 << 16
_LAST_WORDS: Final = 2048
_SHOWN: Final = 300
_END_S: Final = 2.0
_KEPT_VARIABLES: Final = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH")
_KEPT_PREFIXES: Final = ("GST_PLUGIN", "GST_REGISTRY", "LIBCAMERA_", "XDG_", "PULSE_", "PIPEWIRE_")
_PACKAGES: Final = {
    "alsasrc": "gstreamer1.0-alsa",
    "libcamerasrc": "gstreamer1.0-libcamera",
    "avdec": "gstreamer1.0-libav",
}
_USUAL_PACKAGES: Final = "gstreamer1.0-plugins-base gstreamer1.0-plugins-good"


class ReaderProcess:
    """One run of the reader; the constructor starts nothing.

    Args:
        job: what to read.
        what: the device, for messages.
        secrets: values that no message may have.
    """

    def __init__(self, job: Job, what: str, secrets: tuple[str, ...]) -> None:
        self._job = job
        self._what = what
        self._secrets = secrets
        self._process: subprocess.Popen[bytes] | None = None
        self._packets = PacketReader(job.packet_bytes)
        self._last_words = b""

    def start(self) -> None:
        """Start it, in a process group of its own.

        Raises:
            OSError: it cannot be started.
        """
        self._process = process = subprocess.Popen(
            [sys.executable, "-P", "-m", "edge_agent.media"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=_environment(),
            start_new_session=True,
        )
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                os.set_blocking(pipe.fileno(), False)
        if process.stdin is not None:
            with suppress(BrokenPipeError):  # it has ended already; the read says so
                process.stdin.write(self._job.to_bytes())
                process.stdin.close()

    def packets(self, outlet: ThreadOutlet, seconds: float) -> Iterator[MediaPacket]:
        """The packets that arrive within a time; none if there are none, or the agent stops.

        Raises:
            OSError: the process has ended, or reports that the device is gone, busy or denied.
            Transient: it reports another fault, or sends what is no packet.
        """
        process = self._process
        if process is None or process.stdout is None or process.stderr is None:
            raise OSError(errno.ESRCH, "the reader has not been started", self._what)
        out, errors = process.stdout.fileno(), process.stderr.fileno()
        ready = outlet.readable_of((out, errors), seconds)
        if errors in ready:
            self._last_words = (self._last_words + _read(errors))[-_LAST_WORDS:]
        if out not in ready:
            if errors in ready and process.poll() is None and not outlet.stopped:
                outlet.wait(0.01)  # an error output that is closed is always ready
            return
        block = _read(out)
        if not block:
            self._raise_ended(process, errors)
        try:
            for packet in self._packets.feed(block):
                if packet.kind is PacketKind.FAILED:
                    code, _, text = packet.words.partition("\n")
                    raise reported_error(self._what, code, self.words(text))
                yield packet
        except BadStream as error:
            raise Transient(f"{self._what}: the reader sends {error}") from None

    def stop(self) -> None:
        """End it with all that it started, and close the pipes."""
        process, self._process = self._process, None
        if process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        with suppress(subprocess.TimeoutExpired):  # it hangs in a driver: the kernel ends it later
            process.wait(_END_S)

    def words(self, text: str) -> str:
        """A text of the process, on one line, without secrets."""
        return one_line(redacted(text, self._secrets), _SHOWN)

    def _raise_ended(self, process: "subprocess.Popen[bytes]", errors: int) -> NoReturn:
        self._last_words = (self._last_words + _read(errors))[-_LAST_WORDS:]
        with suppress(subprocess.TimeoutExpired):
            process.wait(_END_S)
        said = self.words(self._last_words.decode(errors="replace").strip().rpartition("\n")[2])
        how = "ended" if process.returncode is None else _how(process.returncode)
        raise OSError(errno.EPIPE, f"the reader {how}" + (f": {said}" if said else ""), self._what)


def reported_error(what: str, code: str, words: str) -> OSError | Transient:
    """An error that the reader reports: the device is gone, busy, denied or broken; or what to change."""
    match code:
        case "missing":
            return Transient(f"{what}: {words}; apt-get install {_packages(words)}")
        case "refused":
            return Transient(f"{what}: {words}")
        case "busy":
            return OSError(errno.EBUSY, words, what)
        case "denied":
            hint = "; add the agent's user to the group video or audio"
            return OSError(errno.EACCES, words + hint, what)
        case "absent":
            return OSError(errno.ENODEV, words, what)
        case _:
            return OSError(errno.EIO, words, what)


def _packages(text: str) -> str:
    """Debian's packages that have what is missing."""
    found = [package for part, package in _PACKAGES.items() if part in text]
    decoder = ["gstreamer1.0-libav"] if "decoder" in text.lower() else []
    return " ".join([_USUAL_PACKAGES, *found, *decoder])


def _how(status: int) -> str:
    """An exit status in words."""
    if status >= 0:
        return f"ended with status {status}"
    try:
        return f"was ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"was ended by signal {-status}"


def _read(fd: int) -> bytes:
    try:
        return os.read(fd, _READ_BYTES)
    except BlockingIOError:
        return b""


def _environment() -> dict[str, str]:
    """The variables that GStreamer needs; not the agent's secrets, and nothing that makes it write frames."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name in _KEPT_VARIABLES or name.startswith(_KEPT_PREFIXES)
    }
    # The list of plugins, which takes a second to make: the agent's user may have no home.
    if (cache := os.environ.get("CACHE_DIRECTORY")) and "GST_REGISTRY" not in kept:
        kept["GST_REGISTRY"] = f"{cache.partition(':')[0]}/gstreamer-registry.bin"
    return kept | {"PYTHONDONTWRITEBYTECODE": "1", "GST_DEBUG_NO_COLOR": "1"}
