"""A GStreamer pipeline from which frames are taken with their times by CLOCK_MONOTONIC."""

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from edge_agent.media import library as gst
from edge_agent.media.job import SINK, Job
from edge_agent.media.library import Library

_SINKS: Final = frozenset({"appsink", "fakesink", "fakevideosink", "fakeaudiosink"})
"""Elements of the class ``Sink`` that write nothing."""
_PARSE: Final = "gst_parse_error"
_CODES: Final = {
    (_PARSE, 1): "missing",
    ("gst-core-error-quark", 12): "missing",
    ("gst-stream-error-quark", 6): "missing",
    ("gst-resource-error-quark", 3): "absent",
    ("gst-resource-error-quark", 4): "busy",
    ("gst-resource-error-quark", 15): "denied",
}
"""Domain and number of GStreamer's errors -> our code; others are ``failed``."""
_DETAIL_LINES: Final = 3


def code_of(domain: str, number: int) -> str:
    """Our code for an error of GStreamer."""
    return _CODES.get((domain, number), "failed")


class PipelineError(Exception):
    """The pipeline cannot run.

    Attributes:
        code: ``missing``, ``absent``, ``busy``, ``denied``, ``refused`` or ``failed``.
    """

    def __init__(self, code: str, words: str) -> None:
        super().__init__(words)
        self.code = code


@dataclass(frozen=True)
class Report:
    """A message of an element: ``code`` is empty for a warning."""

    code: str
    words: str


class Pipeline:
    """Constructed in state NULL: no device is open yet.

    Raises:
        PipelineError: an element is missing, the description is wrong, or an element may not be used.
    """

    def __init__(self, library: Library, job: Job) -> None:
        self._lib = library
        error = ctypes.c_void_p()
        made = library.call("gst_parse_launch", job.pipeline.encode(), ctypes.byref(error))
        domain, number, words = library.taken_error(error)
        if words or not made:
            raise PipelineError(code_of(domain, number), words or "no pipeline")
        self._pipeline: int = made
        self._require_no_other_sink(job)
        for element, values in job.properties.items():
            self._set(element, values)
        self._sink = library.call("gst_bin_get_by_name", made, SINK.encode())
        if not self._sink:
            raise PipelineError("failed", f"the pipeline has no element {SINK}")
        self._bus = library.call("gst_element_get_bus", made)
        # The clock of the kernel whose readings the agent can compare with its own; not a device's.
        library.call("gst_pipeline_use_clock", made, library.call("gst_system_clock_obtain"))

    def play(self) -> None:
        """Open the device and start.

        Raises:
            PipelineError: an element refuses; the messages say why.
        """
        if self._lib.call("gst_element_set_state", self._pipeline, gst.PLAYING) == gst.STATE_FAILURE:
            faults = [report for report in self.reports() if report.code]
            first = faults[0] if faults else Report("failed", "the pipeline does not start")
            raise PipelineError(first.code, first.words)

    def pull(self, seconds: float) -> tuple[int, bytes] | None:
        """The next frame with its time in ns; None if none came. A frame without a time is left out."""
        sample = self._lib.call("gst_app_sink_try_pull_sample", self._sink, int(seconds * 1e9))
        if not sample:
            return None
        try:
            return self._taken(sample)
        finally:
            self._lib.call("gst_mini_object_unref", sample)

    @property
    def ended(self) -> bool:
        """Whether there is no more data."""
        return bool(self._lib.call("gst_app_sink_is_eos", self._sink))

    def reports(self) -> Iterator[Report]:
        """Errors and warnings since the last call."""
        wanted = gst.ERROR | gst.WARNING | gst.QOS
        while message := self._lib.call("gst_bus_pop_filtered", self._bus, wanted):
            try:
                yield self._report(message)
            finally:
                self._lib.call("gst_mini_object_unref", message)

    def _taken(self, sample: int) -> tuple[int, bytes] | None:
        buffer = self._lib.call("gst_sample_get_buffer", sample)
        pts = ctypes.cast(buffer, ctypes.POINTER(gst.GstBuffer)).contents.pts
        segment = self._lib.call("gst_sample_get_segment", sample)
        running = self._lib.call("gst_segment_to_running_time", segment, gst.TIME_FORMAT, pts)
        if gst.NO_TIME in (pts, running):
            return None
        size = self._lib.call("gst_buffer_get_size", buffer)
        data = ctypes.create_string_buffer(size)
        self._lib.call("gst_buffer_extract", buffer, 0, data, size)
        return self._lib.call("gst_element_get_base_time", self._pipeline) + running, data.raw

    def _report(self, message: int) -> Report:
        found = ctypes.cast(message, ctypes.POINTER(gst.GstMessage)).contents
        name = self._lib.taken_text(self._lib.call("gst_object_get_name", found.src)) if found.src else ""
        if found.type == gst.QOS:
            return Report("", f"{name}: a frame was not decoded")
        error, detail = ctypes.c_void_p(), ctypes.c_void_p()
        parse = "gst_message_parse_error" if found.type == gst.ERROR else "gst_message_parse_warning"
        self._lib.call(parse, message, ctypes.byref(error), ctypes.byref(detail))
        domain, number, words = self._lib.taken_error(error)
        # The first line is a path in GStreamer's source; the next ones say what the kernel said.
        lines = self._lib.taken_text(detail.value).splitlines()[1 : 1 + _DETAIL_LINES]
        text = " ".join([f"{name}: {words}", *lines])
        return Report(code_of(domain, number) if found.type == gst.ERROR else "", text)

    def _set(self, name: str, values: dict[str, str]) -> None:
        element = self._lib.call("gst_bin_get_by_name", self._pipeline, name.encode())
        if not element:
            raise PipelineError("failed", f"the pipeline has no element {name}")
        for key, value in values.items():
            self._lib.call("gst_util_set_object_arg", element, key.encode(), value.encode())

    def _require_no_other_sink(self, job: Job) -> None:
        """Without ``keep_raw`` nothing may write frames or sound to disk or network."""
        if job.keep_raw:
            return
        for name, kind in self._lib.kinds_of_elements(self._pipeline):
            writes = "Sink" in kind or "Player" in kind or name.endswith("sink")
            if writes and name not in _SINKS:
                raise PipelineError(
                    "refused",
                    f"element {name} ({kind}) writes raw frames or sound; remove it, or set keep_raw = true",
                )
