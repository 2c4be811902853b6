"""What the command line of ``lichen data import`` asks for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from pydantic import TypeAdapter, ValidationError

from protocol.errors import Misconfigured
from protocol.tasks.task import RESERVED, ModalityName

MaterialKind = Literal["table", "sound", "image"]
DEFAULT_NAMES: Final[Mapping[MaterialKind, str]] = {"table": "features", "sound": "sound", "image": "camera"}


@dataclass(frozen=True)
class ImportOptions:
    """Options; None or empty: a guess, which is printed.

    Attributes:
        time: column of the times.
        unit: of the times: ``s``, ``ms``, ``us``, ``ns`` or ``iso``.
        rate_hz: tables: rows a second, without a column of times; sound: samples a second of the recordings.
        label: column of the classes.
        device: column that names the device or person of a row.
        modalities: columns by modality.
        targets: columns by further target.
        columns: the names of the columns of tables without a header.
        classes: class names by the words in the data; "": no label.
        examples: each row of a table is an example, without a time.
        longest_gap_s: longer gaps between two rows are shortened to this.
        name: of the modality of sound, images or examples.
        size: height and width of images in pixels.
        colour: images have three channels, not one.
        clip_s: sound: each file is one example, which takes so many seconds.
        channels: of sound.
        deal: examples are dealt to so many recordings, by ``seed``.
        seed: of all random choices.
    """

    time: str | None = None
    unit: str | None = None
    rate_hz: float | None = None
    label: str | None = None
    device: str | None = None
    modalities: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    targets: Mapping[str, str] = field(default_factory=dict)
    columns: tuple[str, ...] = ()
    classes: Mapping[str, str] = field(default_factory=dict)
    examples: bool = False
    longest_gap_s: float | None = None
    name: str | None = None
    size: tuple[int, int] = (64, 64)
    colour: bool = False
    clip_s: float | None = None
    channels: int = 1
    deal: int | None = None
    seed: int = 0


def pairs(option: str, given: Sequence[str]) -> dict[str, str]:
    """``NAME=VALUE`` words as a table.

    Raises:
        Misconfigured: one has no ``=``, or a name occurs twice.
    """
    found: dict[str, str] = {}
    for word in given:
        name, equals, value = word.partition("=")
        if not equals or not name.strip():
            raise Misconfigured(f"{option} {word!r}: NAME=VALUE is needed")
        if name.strip() in found:
            raise Misconfigured(f"{option}: {name.strip()!r} is named twice")
        found[name.strip()] = value.strip()
    return found


def lists(option: str, given: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """``NAME=A,B,C`` words as a table of lists.

    Raises:
        Misconfigured: as :func:`pairs`; or a list is empty.
    """
    found = {
        name: tuple(one.strip() for one in words.split(",")) for name, words in pairs(option, given).items()
    }
    for name, columns in found.items():
        if not all(columns):
            raise Misconfigured(f"{option} {name}: names of columns are needed, parted by commas")
    return found


def size_of(words: str) -> tuple[int, int]:
    """``96x64`` (width x height, as cameras say it) or ``96`` as height and width in pixels.

    Raises:
        Misconfigured: it is neither, or beyond what a task takes.
    """
    width, _, height = words.lower().partition("x")
    try:
        found = int(height or width), int(width)
    except ValueError:
        raise Misconfigured(f"--size {words!r}: WIDTHxHEIGHT in pixels is needed, such as 96x64") from None
    if not all(1 <= one <= 2048 for one in found):  # noqa: PLR2004 - of protocol.tasks.task.Modality
        raise Misconfigured(f"--size {words!r}: 1 to 2,048 pixels a side")
    return found


def check(options: ImportOptions) -> None:
    """Refuse names that no task can have, before anything is read.

    Raises:
        Misconfigured: one does not fit; names the option.
    """
    modality = TypeAdapter(ModalityName)
    named = [("--modality", one) for one in options.modalities] + [
        ("--target", one) for one in options.targets
    ]
    for option, name in [*named, *([("--name", options.name)] if options.name else [])]:
        try:
            modality.validate_python(name)
        except ValidationError:
            raise Misconfigured(
                f"{option} {name!r}: 1 to 32 letters, digits, _ and -, beginning with a letter"
            ) from None
        if name in RESERVED:
            raise Misconfigured(f"{option} {name!r}: the name has a meaning of its own; choose another")
