"""What a task may ask of a device, by name. An announcement names it; a device that does not know it says so.

A key of a task that is new in a release needs no name where a device may leave it aside. Where it changes
what a device must do, it gets a row in ``FEATURES`` and a line in :func:`needed`; the defaults of keys that
were released stay as they are, for an announcement leaves them out.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Annotated, Final

from pydantic import Field

from protocol.tasks.task import Task

FeatureName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_.:-]{0,63}$")]
FEATURES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "graph": "0.1.0",
        "context": "0.1.0",
        "no_input": "0.1.0",
        "label_rule:whole": "0.1.0",
        "label_rule:majority": "0.1.0",
        "label_rule:last": "0.1.0",
        "label_rule:center": "0.1.0",
        "encoder:cnn1d": "0.1.0",
        "encoder:lstm": "0.1.0",
        "target:classification": "0.1.0",
        "target:regression": "0.1.0",
        "target:generation": "0.1.0",
        "codec:float32": "0.1.0",
        "codec:float16": "0.1.0",
        "codec:int8": "0.1.0",
        "codec:int4": "0.1.0",
        "codec:int2": "0.1.0",
    }
)
"""Those that this lichen knows, and the release in which each of them came. The method is named by the task
itself, and its options are checked by the method: both are refused in words of their own."""


def needed(task: Task) -> tuple[str, ...]:
    """What a device must know to do this task; sorted."""
    names = {f"codec:{task.uplink.codec}", *(f"target:{target.kind}" for target in task.targets)}
    names.add("graph" if task.graph is not None else f"label_rule:{task.window.label_rule}")
    if task.window.context_s is not None:
        names.add("context")
    for modality in task.modalities:
        names.add(f"encoder:{task.encoder(modality.name).kind}" if modality.input else "no_input")
    return tuple(sorted(names))


def unknown(needs: Iterable[str]) -> tuple[str, ...]:
    """Those of them that this lichen does not know, in their order."""
    return tuple(name for name in needs if name not in FEATURES)
