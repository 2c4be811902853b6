"""Compressed frames: a whole frame through Zstandard (RFC 8878), which models its bytes by their frequencies.

    55799([3, size, content, checksum])

``size`` is that of the frame inside, which has format 2; ``content`` one Zstandard frame that names the same
size; ``checksum`` as in :mod:`protocol.frames.frame`. Nothing is decompressed before the declared size is
within the receiver's bound, and no more than that size is allocated. The library is imported on first use.
"""

from typing import Final

from protocol.errors import Reason, Refused
from protocol.frames import cbor

FORMAT: Final = 3
PREFIX: Final = cbor.SELF_DESCRIBED + cbor.array_head(4) + cbor.head(0, FORMAT)
"""First bytes of every compressed frame."""
_BEST: Final = 19
_FAST: Final = 6
_LARGE: Final = 1 << 20
"""Larger frames are compressed with less effort: level 19 takes about .2 s a MB on a desktop's core."""
_LEAST_GAIN: Final = 16
"""Bytes that compression must save."""


def compressed_body(frame: bytes) -> bytes | None:
    """A compressed frame without its seal; None if it saves nothing worth."""
    import zstandard  # noqa: PLC0415 - most of an agent's life needs none

    level = _BEST if len(frame) <= _LARGE else _FAST
    content = zstandard.ZstdCompressor(level=level, write_checksum=False).compress(frame)
    if len(content) + _LEAST_GAIN > len(frame):
        return None
    return PREFIX + cbor.head(0, len(frame)) + cbor.byte_string_head(len(content)) + content


def decompressed(content: bytes, size: int, most: int) -> bytes:
    """The frame inside.

    Args:
        content: one Zstandard frame.
        size: the declared size of the result, bytes.
        most: the receiver's bound on it.

    Raises:
        Refused: ``TOO_LARGE``, or ``MALFORMED``: another size is inside, or the content is damaged.
    """
    if size > most:
        raise Refused(Reason.TOO_LARGE, f"compressed frame of {size} bytes decompressed, at most {most}")
    import zstandard  # noqa: PLC0415 - as above

    try:
        inside = zstandard.get_frame_parameters(content)
        if inside.content_size != size or inside.dict_id:
            raise Refused(
                Reason.MALFORMED,
                f"compressed frame: declares {size} bytes, its content {inside.content_size}",
            )
        frame = zstandard.ZstdDecompressor(max_window_size=1 << 27).decompress(
            content, max_output_size=size, allow_extra_data=False
        )
    except zstandard.ZstdError as error:
        raise Refused(Reason.MALFORMED, f"compressed frame: {error}"[:500]) from None
    if len(frame) != size:
        raise Refused(Reason.MALFORMED, f"compressed frame: {len(frame)} bytes inside, {size} declared")
    return frame
