"""Output names of an exported ONNX model, by target. Pure.

``label`` gives ``probabilities`` and ``logits`` (B, K). Another classification ``t`` gives
``t/probabilities`` and ``t/logits``, a regression ``t/value`` (B,) in its unit, a generation ``t/window``
(B, C, T) in the unit of its modality.
"""

from collections.abc import Iterable
from typing import Final

from protocol.tasks.task import LABEL, Target

PROBABILITIES: Final = "probabilities"
LOGITS: Final = "logits"
VALUE: Final = "value"
WINDOW: Final = "window"
_PARTS: Final = {
    "classification": (PROBABILITIES, LOGITS),
    "regression": (VALUE,),
    "generation": (WINDOW,),
}


def output_names(target: Target) -> tuple[str, ...]:
    """The names of one target's outputs, in the model's order."""
    parts = _PARTS[target.kind]
    return parts if target.name == LABEL else tuple(f"{target.name}/{part}" for part in parts)


def outputs(targets: Iterable[Target]) -> tuple[str, ...]:
    """The names of all outputs, target after target."""
    return tuple(name for target in targets for name in output_names(target))
