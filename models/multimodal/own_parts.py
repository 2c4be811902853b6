"""Encoders and networks of packages (``models.packages``): made, checked, and fitted to what methods use.

An entry point of ``lichen.encoders`` is a function of keyword arguments that returns a ``torch.nn.Module``
from ``x_BCT`` (batch, channels, time or pixels; float32, in the task's scale) to ``z_BD``::

    def make(*, modality, samples, feature_dim, width, depth, **options): ...

One of ``lichen.networks`` makes the encoders of all modalities, by name, and the head, a module from the
list of their ``z_BD`` in the task's order to ``logits_BK``::

    def make(*, task, **options): ...
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from models import packages
from models.multimodal.encoders.steps import MOMENTUM, BatchNorm, ModalityEncoder, Step
from protocol.errors import LichenError, Misconfigured
from protocol.tasks.task import Modality, Task

_PROBE: Final = 2
"""Windows of a probe."""
_NORMS: Final = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_UNMEASURED: Final = (
    *(*_NORMS, nn.SyncBatchNorm),
    *(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d),
)
"""With running statistics, these are measured by nobody where they are not replaced."""


_CHECKED: Final[set[str]] = set()
"""Modules that this process has checked: a device builds the same one in every round."""


class OwnEncoder(ModalityEncoder):
    """An encoder of a package: one step, whose norms are measured where they are.

    ``any_length`` and ``window_values`` are the module's own attributes, if it has them.
    """

    def __init__(self, own: nn.Module) -> None:
        super().__init__()
        self.own = own
        self.any_length = bool(getattr(own, "any_length", False))
        self.window_values = int(getattr(own, "window_values", 0))

    def steps(self) -> Sequence[Step]:
        """The module; it measures the norms in it itself."""
        return [self]

    def forward(self, x_BCT: Tensor) -> Tensor:
        """The feature ``z_BD``."""
        z_BD: Tensor = self.own(x_BCT)
        return z_BD

    def measured(self, x_BCT: Tensor) -> Tensor:
        """The same, with the statistics of each BatchNorm measured on what reaches it."""
        hooks = [
            norm.register_forward_pre_hook(_measure) for norm in self.modules() if isinstance(norm, BatchNorm)
        ]
        try:
            z_BD: Tensor = self(x_BCT)
            return z_BD
        finally:
            for hook in hooks:
                hook.remove()


def _measure(norm: nn.Module, inputs: tuple[Any, ...]) -> None:
    if isinstance(norm, BatchNorm):
        norm.measure(inputs[0])


def own_encoder(task: Task, modality: Modality) -> OwnEncoder:
    """The encoder of a modality whose kind is ``own:NAME``.

    Raises:
        Misconfigured: the package may not be imported here, or its module cannot be used; the message names
            the key.
    """
    chosen, where = task.encoder(modality.name), f"network.encoders.{modality.name}"
    about = {
        "modality": modality,
        "samples": task.samples(modality.name),
        "feature_dim": task.network.feature_dim,
        "width": chosen.width,
        "depth": chosen.depth,
    }
    made = _made(task, packages.ENCODERS, str(chosen.kind), where, about | chosen.options)
    return _checked_encoder(task, modality, made, where)


def own_network(task: Task) -> tuple[dict[str, OwnEncoder], nn.Module]:
    """Encoders and head of a network whose kind is ``own:NAME``.

    Raises:
        Misconfigured: as for :func:`own_encoder`.
    """
    kind, where = str(task.network.kind), "network.kind"
    made = _made(task, packages.NETWORKS, kind, where, {"task": task, **task.network.options})
    if not isinstance(made, tuple) or len(made) != 2 or not isinstance(made[0], Mapping):  # noqa: PLR2004 - a pair
        raise Misconfigured(f"{where}: {kind!r} made {_what(made)}, not (encoders by modality, head)")
    encoders, head = made
    if sorted(encoders) != sorted(task.modality_names):
        raise Misconfigured(f"{where}: {kind!r} made encoders of {sorted(encoders)}, not of each modality")
    checked = {
        one.name: _checked_encoder(task, one, encoders[one.name], f"{where}, encoder of {one.name}")
        for one in task.modalities
    }
    return checked, _checked_head(task, head, f"{where}, head")


def _made(task: Task, group: str, kind: str, where: str, arguments: Mapping[str, Any]) -> Any:
    """What the function of a package returns."""
    with torch.random.fork_rng(devices=[]):  # an import must not change the values of version 0
        make = packages.load(task, group, kind)
    if not callable(make):
        raise Misconfigured(f"{where}: {kind!r} is {_what(make)}, not a function that makes a module")
    return _guarded(lambda: make(**arguments), f"{where}: {kind!r} failed")


def _guarded(call: Callable[[], Any], words: str) -> Any:
    try:
        return call()
    except LichenError:
        raise
    except Exception as error:
        raise Misconfigured(f"{words}: {type(error).__name__}: {error}"[:2000]) from error


def _what(thing: object) -> str:
    return f"a {type(thing).__name__}"


def _checked_encoder(task: Task, modality: Modality, made: object, where: str) -> OwnEncoder:
    module, dim = _module(made, where), task.network.feature_dim
    x_BCT = torch.zeros(_PROBE, modality.channels, task.samples(modality.name))
    _fit(module, x_BCT, (_PROBE, dim), where, f"{_about(task)} {modality.model_dump_json()}")
    return OwnEncoder(module)


def _checked_head(task: Task, made: object, where: str) -> nn.Module:
    module, dim = _module(made, where), task.network.feature_dim
    if any(isinstance(inner, _NORMS) for inner in module.modules()):
        raise Misconfigured(f"{where}: a BatchNorm in a head is not measured; use LayerNorm there, or none")
    z = [torch.zeros(_PROBE, dim) for _ in task.modalities]
    _fit(module, z, (_PROBE, len(task.labels)), where, f"{_about(task)} {len(task.labels)}")
    return module


def _about(task: Task) -> str:
    """What a module depends on besides its modality."""
    hashes = " ".join(package.sha256 for package in task.packages)
    return f"{hashes} {task.network.model_dump_json()} {task.window.length_s}"


def _module(made: object, where: str) -> nn.Module:
    if not isinstance(made, nn.Module):
        raise Misconfigured(f"{where}: the package made {_what(made)}, not a torch.nn.Module")
    return made


def _probe(module: nn.Module, x: Any, shape: tuple[int, int], where: str) -> None:
    """Check that a module takes the task's windows, and returns what methods take."""
    module.eval()
    with torch.no_grad():
        z = _guarded(lambda: module(x), f"{where}: it fails on windows of the task")
    module.train()
    if not isinstance(z, Tensor) or tuple(z.shape) != shape or z.dtype != torch.float32:
        got = f"{tuple(z.shape)} {z.dtype}" if isinstance(z, Tensor) else _what(z)
        raise Misconfigured(f"{where}: it makes {got} of {_PROBE} windows, not {shape} torch.float32")


def _fit(module: nn.Module, x: Any, shape: tuple[int, int], where: str, about: str) -> None:
    """Put the BatchNorm of this package in the place of torch's, and check the module.

    Args:
        module: changed in place.
        x: windows of a probe.
        shape: of what it makes of them.
        where: the key of the task.
        about: all that the module depends on; one that was checked in this process is not checked again.
    """
    checked = f"{where} {about}"
    if checked not in _CHECKED or any(map(is_lazy, module.parameters())):
        _probe(module, x, shape, where)
    for name, inner in module.named_modules():
        if type(inner) in _NORMS:
            _become_ours(inner, f"{where}: {name}")
    if checked in _CHECKED:
        return
    for trouble in _troubles(module):
        raise Misconfigured(f"{where}: {trouble}")
    if not any(True for _ in module.parameters()):
        raise Misconfigured(f"{where}: it has no parameters to learn")
    _CHECKED.add(checked)


def _become_ours(norm: Any, where: str) -> None:
    """Make a norm of torch one for rounds with few steps; the same object, to which the package may refer."""
    if not norm.track_running_stats:
        raise Misconfigured(f"{where}: BatchNorm without running statistics has none at inference")
    norm.__class__ = BatchNorm
    norm.momentum, norm.num_batches_tracked = MOMENTUM, None


def _troubles(module: nn.Module) -> Iterator[str]:
    """Why tensors of a module cannot be sent, each in words."""
    for inner in module.modules():
        if isinstance(inner, _UNMEASURED) and not isinstance(inner, BatchNorm) and inner.track_running_stats:
            kind = type(inner).__name__
            yield f"{kind} is no BatchNorm that can be measured; use torch.nn.BatchNorm1d or 2d"
    for path, tensor in module.state_dict().items():
        if tensor.dtype != torch.float32:
            yield (
                f"{path} is {tensor.dtype}, and versions hold float32; make a constant a buffer with "
                "persistent=False"
            )
        if "/" in path:
            yield f"{path}: names of modules have no slash"
    every = [p for _, p in module.named_parameters(remove_duplicate=False)]
    if len(every) != len({id(p) for p in every}):
        yield "two names share a parameter, and each would be changed by itself; use one module twice instead"
