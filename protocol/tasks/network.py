"""The network of a task, and the packages that parts of it come from."""

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field, JsonValue, WithJsonSchema
from pydantic_core import PydanticCustomError

from protocol.base import Digest, Name, Wire
from protocol.tasks.kinds import KINDS, EncoderKind, ModalityKind

OWN: Final = "own:"
"""Begins the name of a part from a package, so that no later release can mean another part by it."""
_OWN_PATTERN: Final = rf"^{OWN}[a-z][a-z0-9_-]{{0,31}}$"
LINEAR: Final = "linear"
"""A network of one linear layer."""
Options = Annotated[dict[str, JsonValue], Field(max_length=32)]


def _own(text: str) -> str:
    if not re.fullmatch(_OWN_PATTERN, text):
        raise PydanticCustomError("own_kind", "or 'own:NAME', where NAME is an entry point of a package")
    return text


OwnKind = Annotated[str, AfterValidator(_own), WithJsonSchema({"type": "string", "pattern": _OWN_PATTERN})]
"""``own:NAME``: the entry point NAME of a package of the task."""


class Package(Wire):
    """A Python package that has parts of the network. Owners install it; it is never sent."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,62}[A-Za-z0-9])?$")]
    """As ``pip list`` shows it."""
    version: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+!-]{0,63}$")]
    """Another version is refused."""
    sha256: Digest
    """From ``lichen task package NAME``."""


class Encoder(Wire):
    """The network of one modality."""

    kind: EncoderKind | OwnKind | None = None
    """None: ``cnn1d`` for a stream, ``mel`` for sound, ``cnn2d`` for images, ``mlp`` for vectors.
    ``own:NAME``: NAME of a package."""
    width: Annotated[int, Field(ge=4, le=1024)] = 32
    """Channels of the first convolution, hidden units of the LSTM or of a layer, or the size of a token."""
    depth: Annotated[int, Field(ge=1, le=8)] = 5
    """Convolutions, or stacked layers or blocks."""
    residual: bool = False
    """``cnn2d``, ``mel``: convolutions in pairs, with a connection around each pair."""
    bands: Annotated[int, Field(ge=8, le=128)] = 64
    """``mel``: bands of the spectrogram."""
    options: Options = Field(default_factory=dict)
    """``own:NAME``: its further arguments."""


class Network(Wire):
    """Encoders by modality name (absent: the default encoder), one feature size for all, one head."""

    kind: Literal["linear"] | OwnKind | None = None
    """``linear``: one layer. ``own:NAME``: encoders and head of a package."""
    encoders: dict[Name, Encoder] = Field(default_factory=dict)
    feature_dim: Annotated[int, Field(ge=4, le=4096)] = 128
    hidden_dim: Annotated[int, Field(ge=4, le=4096)] = 128
    options: Options = Field(default_factory=dict)
    """``own:NAME``: its further arguments."""


def is_own(kind: str | None) -> bool:
    """Whether a kind is a part from a package."""
    return kind is not None and kind.startswith(OWN)


def trouble_with_encoders(network: Network, kinds: Mapping[str, tuple[ModalityKind, str]]) -> str:
    """What does not fit between encoders and modalities, in words; empty if all does.

    Args:
        network: of the task.
        kinds: of each modality what its encoder gets, and the kind of the encoder.
    """
    if stray := sorted(set(network.encoders) - set(kinds)):
        return f"network.encoders: unknown modalities: {', '.join(stray)} (known: {', '.join(kinds)})"
    for name, (kind, encoder) in kinds.items():
        fitting = KINDS[kind].encoders
        if encoder not in fitting and not is_own(encoder):
            return (
                f"network.encoders.{name}: {encoder!r} does not take a modality of kind {kind!r} "
                f"(fitting: {', '.join(fitting)})"
            )
    return ""


def trouble_with_linear(network: Network, values: Mapping[str, int]) -> str:
    """What a ``linear`` network lacks, in words; empty: nothing. ``values``: of a window, by modality."""
    if network.kind != LINEAR:
        return ""
    if network.encoders:
        return f"network.encoders: a {LINEAR!r} network has no encoders; leave them out"
    for name, count in values.items():
        if count != network.feature_dim:
            return (
                f"network.feature_dim: {network.feature_dim}; a window of {name!r} has {count} values, "
                f"and in a {LINEAR!r} network they are the same"
            )
    return ""


def trouble_with_packages(network: Network, packages: Iterable[Package]) -> str:
    """What does not fit between a network and the packages of its task, in words; empty if all does."""
    names = [package.name for package in packages]
    own = {f"network.encoders.{name}.kind": one.kind for name, one in network.encoders.items()}
    used = {key: kind for key, kind in {"network.kind": network.kind, **own}.items() if is_own(kind)}
    if used and not names:
        key, kind = next(iter(used.items()))
        return f"{key}: {kind!r} is a part of a package; name it in [[packages]]"
    if twice := sorted({name for name in names if names.count(name) > 1}):
        return f"packages: {twice[0]!r} is named twice"
    if is_own(network.kind) and network.encoders:
        return f"network.encoders: {network.kind!r} makes its encoders itself; give it network.options"
    return _unused_options(network)


def _unused_options(network: Network) -> str:
    tables: Mapping[str, Encoder | Network] = {
        "network": network,
        **{f"network.encoders.{name}": one for name, one in network.encoders.items()},
    }
    wrong = [key for key, table in tables.items() if table.options and not is_own(table.kind)]
    return f"{wrong[0]}.options: for a part of a package only (kind = 'own:NAME')" if wrong else ""
