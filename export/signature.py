"""What an inference module reads and predicts: the inputs and outputs of its ONNX model. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from protocol.output_names import outputs
from protocol.tasks.task import LABEL, Modality, Target, Task

PRESENT: Final = "present"


@dataclass(frozen=True)
class Surface:
    """Inputs and outputs of an ONNX model.

    Attributes:
        modalities: inputs, in the order of the columns of ``present``.
        targets: predicted targets, in the order of the outputs.
        samples: T of a window, by modality that is read or generated.
        generated: modalities of the generations among ``targets``, by the target's name.
        any_length: names of the inputs whose time axis is dynamic.
    """

    modalities: tuple[Modality, ...]
    targets: tuple[Target, ...]
    samples: Mapping[str, int]
    generated: Mapping[str, Modality]
    any_length: frozenset[str] = frozenset()

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the modalities that are read."""
        return tuple(m.name for m in self.modalities)

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the ONNX model's inputs."""
        return (PRESENT, *self.names)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the ONNX model's outputs."""
        return outputs(self.targets)

    @property
    def only_label(self) -> bool:
        """Whether it predicts the task's ``labels`` alone."""
        return tuple(target.name for target in self.targets) == (LABEL,)


def surface_of(module: Any, task: Task) -> Surface:
    """The surface of an inference module.

    Args:
        module: its attributes ``modalities`` (names) and ``targets``; by default all of the task's inputs and
            ``label``. ``any_length``: names of those whose windows may have any length; by default none.
        task: of the module.
    """
    names = getattr(module, "modalities", task.input_names)
    targets = tuple(getattr(module, "targets", (task.target(LABEL),)))
    generated = {t.name: task.modality(t.modality) for t in targets if t.modality is not None}
    read = tuple(task.modality(name) for name in names)
    return Surface(
        modalities=read,
        targets=targets,
        samples={m.name: task.samples(m.name) for m in (*read, *generated.values())},
        generated=generated,
        any_length=frozenset(names).intersection(getattr(module, "any_length", ())),
    )
