"""``python -P -m edge_agent.media``: runs the job from standard input, writes packets to standard output."""

import ctypes
import mmap
import os
import resource
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Final

from edge_agent.media.job import MAX_JOB_BYTES, Job, read_job
from edge_agent.media.library import Library
from edge_agent.media.outgoing import Outgoing
from edge_agent.media.packets import PacketKind
from edge_agent.media.pipeline import Pipeline, PipelineError
from runtime.process import landlock

_PR_SET_PDEATHSIG: Final = 1
_NICE: Final = 5
_MAX_DATA_BYTES: Final = 1 << 30
"""Of this process: a decoder that leaks ends, and is started again."""
_PULL_S: Final = 0.5
_EARLY: Final = 0.3
"""Share of the period by which an image may be early: cameras are not exact."""
_OUT: Final = 1


class _FrameRate:
    """Chooses images so that they come at most once in a period; 0 takes all."""

    def __init__(self, period_ns: int) -> None:
        self._period = period_ns
        self._due: int | None = None

    def takes(self, time_ns: int) -> bool:
        if not self._period:
            return True
        due = time_ns if self._due is None else self._due
        if time_ns < due - self._period * _EARLY:
            return False
        # On the grid of the first one; after a pause from here on.
        self._due = (due if time_ns < due + self._period else time_ns) + self._period
        return True


def _may_generate_code() -> bool:
    """False under ``MemoryDenyWriteExecute`` of systemd."""
    try:
        mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC).close()
    except OSError:
        return False
    return True


def _confine(job: Job) -> None:
    """Without ``keep_raw``, no file can be made or written from here on, whatever an element tries.

    GStreamer's registry of plugins is written before. Devices are written to when they are set up.
    """
    for limit, most in ((resource.RLIMIT_CORE, 0), (resource.RLIMIT_DATA, _MAX_DATA_BYTES)):
        with suppress(OSError):  # a filter of system calls may deny it
            resource.setrlimit(limit, (most, most))  # a core file would have frames
    if not job.keep_raw:
        landlock.restrict(read=[Path("/")], write=[Path("/dev")], network=job.network)


def _run(job: Job, outgoing: Outgoing) -> None:
    """Until the pipeline ends.

    Raises:
        PipelineError: it cannot run, or fails.
    """
    try:
        library = Library()
    except OSError as error:
        raise PipelineError("missing", str(error)) from None
    if not library.call("gst_init_check", None, None, None):
        raise PipelineError("failed", "GStreamer does not start")
    _confine(job)
    pipeline = Pipeline(library, job)
    # After the confinement, which holds for the threads that are started afterwards.
    threading.Thread(target=outgoing.run, daemon=True).start()
    pipeline.play()
    chosen, started = _FrameRate(job.period_ns), False
    while True:
        frame = pipeline.pull(_PULL_S)
        for report in pipeline.reports():
            if report.code:
                raise PipelineError(report.code, report.words)
            outgoing.say(PacketKind.WARNING, report.words)
        if frame is None:
            if pipeline.ended:
                return
            continue
        if not started:
            outgoing.say(PacketKind.STARTED, "")
            started = True
        if chosen.takes(frame[0]):
            _send(job, frame, outgoing)


def _send(job: Job, frame: tuple[int, bytes], outgoing: Outgoing) -> None:
    """Hand over an image; sound in blocks of at most ``packet_bytes``."""
    time_ns, data = frame
    if not job.row_bytes:
        if len(data) != job.packet_bytes:
            raise PipelineError("failed", f"a frame has {len(data)} bytes, not {job.packet_bytes}")
        outgoing.put(time_ns, data)
        return
    for at in range(0, len(data), job.packet_bytes):
        offset_ns = at // job.row_bytes * 1_000_000_000 // job.rate_hz
        outgoing.put(time_ns + offset_ns, data[at : at + job.packet_bytes])


def main() -> None:
    """Run, and say why it ended."""
    job = read_job(sys.stdin.buffer.read(MAX_JOB_BYTES + 1))
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if job.parent != os.getppid():
        return  # the agent ended before the line above
    with suppress(OSError):
        os.nice(_NICE)
    if not _may_generate_code():
        os.environ["ORC_CODE"] = "backup"  # else GStreamer's code generator ends the process
    outgoing = Outgoing(_OUT, job.packet_bytes, live=job.live)
    try:
        _run(job, outgoing)
        last = PacketKind.ENDED, ""
    except PipelineError as error:
        last = PacketKind.FAILED, f"{error.code}\n{error}"
    outgoing.say(*last)
    outgoing.close()
    outgoing.run()  # what the thread has not written, if there is one
    os._exit(0)  # stopping a pipeline may hang in a driver; the kernel closes the device


if __name__ == "__main__":
    main()
