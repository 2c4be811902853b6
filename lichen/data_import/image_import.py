"""Images -> recordings: each an example, at the size and with the channels of the task.

Shapes: C channels, H rows, W columns.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from lichen.data_import.import_options import DEFAULT_NAMES, ImportOptions
from lichen.data_import.listing import ImportedFile
from lichen.data_import.output.forms import Form
from lichen.data_import.output.recordings import RecordingWriter
from protocol.errors import Misconfigured

if TYPE_CHECKING:
    from PIL import Image

EXAMPLE_S: Final = 1.0
"""Of an image in a recording: one a second."""
_MOST_PIXELS: Final = 100_000_000


@dataclass
class ImageImport:
    """Reads images into a writer."""

    options: ImportOptions
    writer: RecordingWriter

    def add(self, device: str, file: ImportedFile, progress: Callable[[int], None]) -> None:
        """Read one image.

        Raises:
            Misconfigured: it is damaged or too large; names the file.
            ModuleNotFoundError: Pillow is not installed.
        """
        pixels = read(file.path, self.options.size, colour=self.options.colour)
        code = -1 if file.label is None else self.writer.classes.code(file.label)
        form = Form("image", (pixels.shape[0], *self.options.size))
        name = self.options.name or DEFAULT_NAMES["image"]
        self.writer.examples(device, name, pixels.reshape(1, -1), np.array([code], np.int32), form)
        progress(file.path.stat().st_size)


def read(path: Path, size: tuple[int, int], *, colour: bool) -> NDArray[np.uint8]:
    """An image as ``(C, H, W)`` from 0 to 255: turned as its camera says, its middle at the wanted size.

    Args:
        path: the file.
        size: height and width.
        colour: three channels (red, green, blue), not one.

    Raises:
        Misconfigured: it is damaged, too large, or no image; names the file.
        ModuleNotFoundError: Pillow is not installed.
    """
    from PIL import Image, ImageOps  # noqa: PLC0415 - an optional part

    height, width = size
    try:
        with warnings.catch_warnings():
            # damaged metadata is no reason to refuse the pixels, and the size is checked here
            warnings.simplefilter("ignore")
            with Image.open(path) as image:
                if image.width * image.height > _MOST_PIXELS:
                    raise Misconfigured(
                        f"{path}: {image.width} x {image.height} pixels, at most {_MOST_PIXELS:,} are read"
                    )
                mode = "RGB" if colour else "L"
                image.draft(mode, (2 * max(size), 2 * max(size)))  # of JPEG alone: decodes at a smaller size
                plain = _plain_colours(ImageOps.exif_transpose(image), mode)
                fitted = ImageOps.fit(plain, (width, height), Image.Resampling.BILINEAR)
                values = np.asarray(fitted, np.uint8)
    except (
        OSError,
        SyntaxError,
        ValueError,
        EOFError,
        ArithmeticError,
        Image.DecompressionBombError,
    ) as error:
        raise Misconfigured(f"{path}: no image that can be read: {_plain(error, path)}") from None
    return np.ascontiguousarray(values.transpose(2, 0, 1) if colour else values[None])


def _plain_colours(image: "Image.Image", mode: str) -> "Image.Image":
    """The image in that mode: 16 bits as 8, transparent pixels as white ones."""
    from PIL import Image  # noqa: PLC0415 - an optional part

    if image.mode.startswith("I"):
        values = np.asarray(image).astype(np.float64)
        scale = 256 if values.max(initial=0) > 255 else 1  # noqa: PLR2004 - the largest of 8 bits
        return Image.fromarray(np.clip(values / scale, 0, 255).astype(np.uint8)).convert(mode)
    if "A" not in image.getbands() and "transparency" not in image.info:
        return image.convert(mode)
    over = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", over.size, (255, 255, 255, 255)), over).convert(mode)


def _plain(error: Exception, path: Path) -> str:
    return str(error).replace(repr(str(path)), "the file") or type(error).__name__
