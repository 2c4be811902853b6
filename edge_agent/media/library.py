"""The few functions of GStreamer 1.x that the reader needs, by ctypes.

The layouts of ``GstMiniObject``, ``GstBuffer`` (its first fields), ``GstMessage`` and ``GError`` are public
and have been the same in all releases 1.x.
"""

import ctypes
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p
from typing import Any, Final

NO_TIME: Final = 2**64 - 1
TIME_FORMAT: Final = 3
NULL, PLAYING = 1, 4
STATE_FAILURE: Final = 0
EOS, ERROR, WARNING, QOS = 1 << 0, 1 << 1, 1 << 2, 1 << 24
_ITERATOR_OK: Final = 1


class GstMiniObject(ctypes.Structure):
    """``GstMiniObject``."""

    _fields_ = (
        ("type", c_size_t), ("refcount", c_int), ("lockstate", c_int), ("flags", c_uint), ("copy", c_void_p),
        ("dispose", c_void_p), ("free", c_void_p), ("private_uint", c_uint), ("private_pointer", c_void_p),
    )  # fmt: skip


class GstBuffer(ctypes.Structure):
    """The first fields of ``GstBuffer``."""

    _fields_ = (("mini", GstMiniObject), ("pool", c_void_p), ("pts", c_uint64))


class GstMessage(ctypes.Structure):
    """``GstMessage``."""

    _fields_ = (("mini", GstMiniObject), ("type", c_uint), ("timestamp", c_uint64), ("src", c_void_p))


class GError(ctypes.Structure):
    """``GError``."""

    _fields_ = (("domain", ctypes.c_uint32), ("code", c_int), ("message", c_char_p))


_SIGNATURES: Final[dict[str, tuple[str, Any, tuple[Any, ...]]]] = {
    "gst_init_check": ("gst", c_int, (c_void_p, c_void_p, c_void_p)),
    "gst_parse_launch": ("gst", c_void_p, (c_char_p, c_void_p)),
    "gst_object_unref": ("gst", None, (c_void_p,)),
    "gst_object_get_name": ("gst", c_void_p, (c_void_p,)),
    "gst_mini_object_unref": ("gst", None, (c_void_p,)),
    "gst_bin_get_by_name": ("gst", c_void_p, (c_void_p, c_char_p)),
    "gst_bin_iterate_recurse": ("gst", c_void_p, (c_void_p,)),
    "gst_iterator_next": ("gst", c_int, (c_void_p, c_void_p)),
    "gst_iterator_free": ("gst", None, (c_void_p,)),
    "gst_element_get_factory": ("gst", c_void_p, (c_void_p,)),
    "gst_element_factory_get_metadata": ("gst", c_char_p, (c_void_p, c_char_p)),
    "gst_element_set_state": ("gst", c_int, (c_void_p, c_int)),
    "gst_element_get_base_time": ("gst", c_uint64, (c_void_p,)),
    "gst_element_get_bus": ("gst", c_void_p, (c_void_p,)),
    "gst_bus_pop_filtered": ("gst", c_void_p, (c_void_p, c_uint)),
    "gst_message_parse_error": ("gst", None, (c_void_p, c_void_p, c_void_p)),
    "gst_message_parse_warning": ("gst", None, (c_void_p, c_void_p, c_void_p)),
    "gst_system_clock_obtain": ("gst", c_void_p, ()),
    "gst_pipeline_use_clock": ("gst", None, (c_void_p, c_void_p)),
    "gst_util_set_object_arg": ("gst", None, (c_void_p, c_char_p, c_char_p)),
    "gst_sample_get_buffer": ("gst", c_void_p, (c_void_p,)),
    "gst_sample_get_segment": ("gst", c_void_p, (c_void_p,)),
    "gst_segment_to_running_time": ("gst", c_uint64, (c_void_p, c_int, c_uint64)),
    "gst_buffer_get_size": ("gst", c_size_t, (c_void_p,)),
    "gst_buffer_extract": ("gst", c_size_t, (c_void_p, c_size_t, c_void_p, c_size_t)),
    "gst_app_sink_try_pull_sample": ("app", c_void_p, (c_void_p, c_uint64)),
    "gst_app_sink_is_eos": ("app", c_int, (c_void_p,)),
    "g_error_free": ("glib", None, (c_void_p,)),
    "g_free": ("glib", None, (c_void_p,)),
    "g_quark_to_string": ("glib", c_char_p, (ctypes.c_uint32,)),
    "g_value_get_object": ("gobject", c_void_p, (c_void_p,)),
    "g_value_reset": ("gobject", c_void_p, (c_void_p,)),
}
_FILES: Final = {
    "gst": "libgstreamer-1.0.so.0",
    "app": "libgstapp-1.0.so.0",
    "glib": "libglib-2.0.so.0",
    "gobject": "libgobject-2.0.so.0",
}


class Library:
    """GStreamer's functions as attributes.

    Raises:
        OSError: a library is not installed.
    """

    def __init__(self) -> None:
        loaded = {name: ctypes.CDLL(file) for name, file in _FILES.items()}
        self._functions = {}
        for name, (library, result, arguments) in _SIGNATURES.items():
            function = getattr(loaded[library], name)
            function.restype, function.argtypes = result, arguments
            self._functions[name] = function

    def call(self, name: str, *arguments: Any) -> Any:
        """Call a function."""
        return self._functions[name](*arguments)

    def taken_text(self, pointer: int | None) -> str:
        """A text that the caller must free, which happens here."""
        if not pointer:
            return ""
        text = ctypes.string_at(pointer).decode(errors="replace")
        self.call("g_free", pointer)
        return text

    def taken_error(self, error: c_void_p) -> tuple[str, int, str]:
        """Domain, code and words of a ``GError``, which is freed here."""
        if not error.value:
            return "", 0, ""
        found = ctypes.cast(error, POINTER(GError)).contents
        domain = self.call("g_quark_to_string", found.domain) or b""
        words = (found.message or b"").decode(errors="replace")
        result = domain.decode(), int(found.code), words
        self.call("g_error_free", error)
        return result

    def kinds_of_elements(self, pipeline: int) -> list[tuple[str, str]]:
        """Factory name and class of all elements, as ``("filesink", "Sink/File")``."""
        found = []
        iterator = self.call("gst_bin_iterate_recurse", pipeline)
        value = (c_uint64 * 3)()  # GValue
        while self.call("gst_iterator_next", iterator, byref(value)) == _ITERATOR_OK:
            factory = self.call("gst_element_get_factory", self.call("g_value_get_object", byref(value)))
            if factory:
                kind = self.call("gst_element_factory_get_metadata", factory, b"klass") or b""
                found.append((self.taken_text(self.call("gst_object_get_name", factory)), kind.decode()))
            self.call("g_value_reset", byref(value))
        self.call("gst_iterator_free", iterator)
        return found
