"""A backbone in ONNX Runtime: what its inputs and outputs must be, and how windows go through it.

Shapes: B windows, C channels, T samples or pixels, D features.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import numpy as np

from models.backbones.views import layouts
from models.contract import FloatArray
from protocol.errors import Reason, Refused
from protocol.tasks.kinds import MAX_FEATURES
from protocol.tasks.task import Modality

_FLOAT: Final = "tensor(float)"


class Argument(Protocol):
    """An input or output of a session."""

    name: str
    shape: Sequence[int | str | None]
    type: str


class BackboneSession(Protocol):
    """The part of ``onnxruntime.InferenceSession`` that is used."""

    def get_inputs(self) -> Sequence[Argument]:
        """Inputs."""

    def get_outputs(self) -> Sequence[Argument]:
        """Outputs."""

    def run(self, outputs: list[str], feeds: dict[str, Any]) -> list[Any]:
        """The outputs of these names."""


class BackboneModel:
    """A loaded backbone. Synchronous.

    Args:
        session: of the file.
        errors: exceptions of ONNX Runtime.
        modality: what the sensor delivers, with its backbone.
        samples: T of its windows.

    Raises:
        Refused: its inputs or outputs do not fit the modality, it does not run, or it makes another number of
            features than the task says.
    """

    def __init__(
        self, session: BackboneSession, errors: tuple[type[Exception], ...], modality: Modality, samples: int
    ) -> None:
        self._session, self._errors, self._modality = session, errors, modality
        self._input, self._layout = _input(session, modality, samples)
        self._output = _output(session, modality.backbone.output if modality.backbone else None)
        self.features = len(self._call(np.zeros((1, modality.channels, samples), np.float32))[0])
        """D."""
        wanted = modality.backbone.features if modality.backbone else None
        if not 1 <= self.features <= MAX_FEATURES or wanted not in {None, self.features}:
            raise _misfit(f"it makes {self.features} features, not {wanted or f'1 to {MAX_FEATURES}'}")

    def run(self, x_BCT: FloatArray) -> FloatArray:
        """The features ``z_BD`` of windows in the modality's unit.

        Each window is run alone: its features are the same to the bit on a device, which cuts few at a time,
        and in a simulation, which has all. Operators that quantize by the range of a batch, and sums in
        another order, would make them depend on the other windows.

        Raises:
            Refused: ONNX Runtime cannot run it, or a feature of finite windows is not finite.
        """
        z_BD = np.zeros((len(x_BCT), self.features), np.float32)
        for at in range(len(x_BCT)):
            (made_D,) = self._call(x_BCT[at : at + 1])
            if len(made_D) != self.features:
                raise _misfit(f"output {self._output!r} has {len(made_D)} values, of zeros {self.features}")
            z_BD[at] = made_D
        return z_BD

    def _call(self, x_BCT: FloatArray) -> FloatArray:
        m = self._modality
        scaled = ((x_BCT - np.float32(m.offset)) / np.float32(m.scale)).astype(np.float32)
        feeds = {self._input: np.ascontiguousarray(scaled.reshape(len(x_BCT), *self._layout))}
        try:
            (made,) = self._session.run([self._output], feeds)
        except self._errors as error:
            raise Refused(Reason.MALFORMED, f"it does not run: {error}"[:400]) from None
        if getattr(made, "dtype", None) != np.float32 or not made.ndim or len(made) != len(x_BCT):
            raise _misfit(
                f"output {self._output!r} of {len(x_BCT)} windows is {_about(made)}, not float32 (B, D)"
            )
        z_BD: FloatArray = made.reshape(len(x_BCT), -1)
        if not np.isfinite(z_BD).all():
            raise Refused(Reason.NON_FINITE, f"output {self._output!r} of finite windows is not finite")
        return z_BD


def _input(session: BackboneSession, modality: Modality, samples: int) -> tuple[str, tuple[int, ...]]:
    """Name, and shape of a window in it."""
    inputs, shapes = session.get_inputs(), tuple(layouts(modality, samples))
    wanted = " or ".join(f"(B, {', '.join(map(str, shape))})" for shape in shapes)
    if len(inputs) != 1:
        raise _misfit(f"it has {len(inputs)} inputs ({', '.join(i.name for i in inputs)[:200]}), not one")
    (given,) = inputs
    dims = list(given.shape)
    fitting = [shape for shape in shapes if _fits(dims[1:], shape)]
    if given.type != _FLOAT or not fitting:
        raise _misfit(
            f"input {given.name!r} is {given.type} {dims}; windows of {modality.name!r} are {wanted}"
        )
    if isinstance(dims[0], int) and dims[0] != 1:
        raise _misfit(f"input {given.name!r} takes {dims[0]} windows at once, not any number or one")
    return given.name, fitting[0]


def _fits(dims: Sequence[int | str | None], shape: tuple[int, ...]) -> bool:
    return len(dims) == len(shape) and all(
        not isinstance(one, int) or one == size for one, size in zip(dims, shape, strict=True)
    )


def _output(session: BackboneSession, name: str | None) -> str:
    names = [one.name for one in session.get_outputs()]
    if name is not None and name not in names:
        raise _misfit(f"it has no output {name!r} (it has {', '.join(names)[:200]})")
    if name is None and len(names) != 1:
        raise _misfit(f"it has {len(names)} outputs; name one: output = ... ({', '.join(names)[:200]})")
    return name or names[0]


def _misfit(words: str) -> Refused:
    return Refused(Reason.WRONG_TENSORS, words[:400])


def _about(made: Any) -> str:
    return f"{getattr(made, 'dtype', type(made).__name__)} {getattr(made, 'shape', '')}"


Run = Callable[[FloatArray], FloatArray]
