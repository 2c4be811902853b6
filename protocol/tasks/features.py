"""Features that a task may require of a device. A device reports the announced ones that it lacks.

A new key of a task needs no feature if devices may ignore it. If it changes what a device must do, it gets a
row in ``FEATURES`` and a line in :func:`needed`. Defaults of released keys never change, because an
announcement omits them.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Annotated, Final

from pydantic import Field

from protocol.tasks.network import LINEAR, is_own
from protocol.tasks.task import Modality, Task

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
        "encoder:tcn": "0.1.0",
        "encoder:transformer1d": "0.1.0",
        "encoder:mel": "0.1.0",
        "encoder:cnn2d": "0.1.0",
        "encoder:mlp": "0.1.0",
        "encoder:text": "0.1.0",
        "packages": "0.1.0",
        "privacy": "0.1.0",
        "privacy.adaptive_clip": "0.1.0",
        "privacy.device_noise": "0.1.0",
        "local_privacy": "0.1.0",
        "secure_aggregation": "0.1.0",
        "backbone": "0.1.0",
        "network:linear": "0.1.0",
        "modality:sound": "0.1.0",
        "modality:image": "0.1.0",
        "modality:vector": "0.1.0",
        "modality:text": "0.1.0",
        "target:classification": "0.1.0",
        "target:regression": "0.1.0",
        "target:generation": "0.1.0",
        "codec:float32": "0.1.0",
        "codec:float16": "0.1.0",
        "codec:int8": "0.1.0",
        "codec:int4": "0.1.0",
        "codec:int2": "0.1.0",
        "codec:steps": "0.1.0",
    }
)
"""Known features, and the release that introduced each. Unknown methods and options are refused elsewhere,
with messages of their own."""


def needed(task: Task) -> tuple[str, ...]:
    """Features that a device needs for this task; sorted."""
    names = {f"codec:{task.uplink.codec}", *(f"target:{target.kind}" for target in task.targets)}
    names.add("graph" if task.graph is not None else f"label_rule:{task.window.label_rule}")
    if task.window.context_s is not None:
        names.add("context")
    if task.privacy is not None:
        names |= {"privacy", *(["privacy.adaptive_clip"] if task.privacy.adaptive_clip else [])}
    if task.local_privacy is not None:
        names.add("local_privacy")
    if task.secure_aggregation is not None:
        names |= {"secure_aggregation", *(["privacy.device_noise"] if task.privacy else [])}
    if task.packages:
        names.add("packages")
    if task.network.kind == LINEAR:
        names.add(f"network:{LINEAR}")
    for modality in task.modalities:
        names.add(_encoder(task, modality) if modality.input else "no_input")
        if modality.sensed is not None or modality.backbone is not None:
            names.add("backbone")
        if (kind := (modality.sensed or modality).kind) != "stream":
            names.add(f"modality:{kind}")
    return tuple(sorted(names))


def _encoder(task: Task, modality: Modality) -> str:
    kind = task.encoder(modality.name).kind
    if task.network.kind == LINEAR:
        return f"network:{LINEAR}"
    return "packages" if is_own(task.network.kind) or is_own(kind) else f"encoder:{kind}"


def unknown(needs: Iterable[str]) -> tuple[str, ...]:
    """The unknown ones among them, in their order."""
    return tuple(name for name in needs if name not in FEATURES)
