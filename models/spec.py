"""Describes a method (in its folder's ``__init__``), and imports its halves. Torch-free."""

import difflib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from pydantic import BaseModel

from models.backbones.views import unlearnable
from models.contract import Blobs, Client, Prototyper, Router, Server, Tensors
from models.guided import ServerTrainer
from models.materials import KINDS, MaterialKind, MaterialName
from models.packages import METHODS, from_source, wanted
from protocol.errors import Misconfigured
from protocol.frames.tensors import Codec
from protocol.tasks.kinds import KINDS as MODALITY_KINDS
from protocol.tasks.kinds import ModalityKind
from protocol.tasks.links import Downlink, Uplink
from protocol.tasks.task import Task

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

C = TypeVar("C", bound=BaseModel)
_WANTED: Final = {
    "int_type": "a whole number is wanted",
    "float_type": "a number is wanted",
    "bool_type": "true or false is wanted",
}
_FOUND: Final = 60
"""Maximum characters of a wrong value in a message."""


@dataclass(frozen=True)
class MethodSpec(Generic[C]):
    """The description of a method; generic over its options. Torch-free."""

    name: str
    title: str
    paper: str
    config: type[C]
    needs_labels: bool
    symbols: Mapping[str, str] = field(default_factory=dict)
    """The paper's symbol -> our name."""
    prototype_role: bool = False
    """Devices without torch can send prototypes alone: there is a ``prototyper.py``."""
    trains: Callable[[Any], bool] = lambda _config: True
    """Whether devices train under a config. If so, a round needs a device that trains; otherwise devices of
    role ``prototype`` suffice."""
    personal: Callable[[Any], tuple[str, ...]] = lambda _config: ()
    """The parts of a state (first words of blob names) of which a device has a private copy, under a config;
    requires a ``personal.py``."""
    noise: Callable[[Any], float] = lambda _config: 0.0
    """Noise multiplier of differential privacy for single windows under a config, in sensitivities; 0: none.
    With noise the method charges each release to the account of ``models/privacy/account.py``."""
    bounded: tuple[str, ...] = ()
    """First words of names of blobs whose updates the server bounds by itself: the screen skips them."""
    in_groups: bool = False
    """Devices of a simulation can train at once: the client is a
    :class:`models.training.group_client.GroupClient`."""
    routed: bool = False
    """Devices hold parts of the model, by their profile: there is a ``router.py``, the server is a
    :class:`RoutedServer`, and each kind of device gets its own bundle."""
    guided: bool = False
    """The coordinator views each update on its labelled windows before the fold, and trains on them after:
    the task has ``labelled``, there is a ``trainer.py``, and the server is a :class:`GuidedServer`."""
    optimised: tuple[str, ...] = ("encoder", "head")
    """First words of names of blobs that ``task.aggregator`` steps; others take the fold's values."""
    tunable: tuple[str, ...] = ()
    """Prefixes of options that may change when a coordinator restarts: those of its own training and weights,
    on which neither devices nor the shapes of versions depend."""
    experts: Callable[[Iterable[str]], frozenset[str]] = frozenset
    """The experts among the blobs of a route or an update, for ``rounds.selection = "bandit"``."""
    several_targets: bool = False
    """Supports ``targets`` besides ``labels``, and modalities that are no inputs."""
    modality_kinds: tuple[ModalityKind, ...] = tuple(MODALITY_KINDS)
    """The kinds of modalities that devices may learn from; a task with another is refused."""
    generated_kinds: tuple[ModalityKind, ...] = tuple(MODALITY_KINDS)
    """The kinds of modalities whose windows a target may be, if it supports ``targets``."""
    augments: bool = False
    """Devices change windows while they train (``modalities.augment``); without it such a task is refused."""
    material: MaterialName = "windows"
    """Material of devices: tasks have ``labels`` and ``modalities``, or a table ``graph``."""
    owned: tuple[str, ...] = ()
    """The parts of a state (first words of blob names) of which each device has a blob of its own,
    ``<part>/<device>``: on that device's route alone, and neither exported nor evaluated."""
    one_model: bool = False
    """All versions of a task have the same ONNX model, which devices feed with the tensors of a version: it
    is exported once, and packed for each version."""
    beyond: Callable[[Task], int] = lambda _task: 0
    """Maximum number of elements of an update beyond those of the model."""
    codecs: Mapping[str, Codec] = field(default_factory=dict)
    """Lossless codecs of a version's tensors, by the last part of their names; others are float32, and of
    rounded parts only others are rounded."""
    rounded: tuple[str, ...] = ("encoder", "head")
    """First words of names of blobs whose float32 values may be rounded on their way to devices: training
    moves them in small steps. The others are exact."""
    fine: tuple[str, ...] = ()
    """The rounded parts whose steps are an eighth as long."""
    uplink: Uplink = field(default_factory=Uplink)
    """Of a task whose file has no table ``[uplink]``: see :meth:`completed`."""
    downlink: Downlink = field(default_factory=Downlink)
    """Of a task whose file has no table ``[downlink]``."""
    robust_folds: bool = True
    """Whether ``task.robust.fold`` may be other than ``mean``."""
    own_parts: tuple[str, ...] = ()
    """Groups of entry points (:mod:`models.packages`) whose parts its network may have."""
    home: str = ""
    """Of a method from a package: the Python package that holds its halves. Set by the registry."""
    linear: bool = False
    """Supports networks of one linear layer, which devices train without torch: there is a ``linear.py``."""
    misfit: Callable[[Any, Task], str] = lambda _config, _task: ""
    """What in the options does not fit the task's classes and modalities, in words; empty: all does."""
    summed: bool = False
    """Supports ``[secure_aggregation]``: without ``task.robust`` all parts of its fold are sums."""
    not_secure: Callable[[Any, Task], str] | None = None
    """Why not ``[secure_aggregation]``, though :attr:`summed`; without it, no ``guided`` method has it."""
    not_private: Callable[[Any, Task], str] = lambda _config, _task: "one clip does not cover its updates"
    """Why not ``[privacy]``; empty: its folds are exact sums of updates' tensors, and nothing else."""
    not_local: Callable[[Any, Task], str] = lambda _config, _task: "its devices do not train with DP-SGD"
    """Why not ``[local_privacy]``; empty: devices train so, and charge it (``models/privacy/local``)."""
    class_rows: Callable[[str], str] = lambda _tensor: ""
    """The target whose classes are the rows of a tensor, by its full name; empty: they are none."""
    modality_columns: tuple[str, ...] = ()
    """Tensors whose columns are features of the modalities, in the task's order."""
    reported: tuple[str, ...] = ()
    """Metrics of updates whose mean over devices, weighted by samples, is a version's metric if the
    coordinator cannot evaluate versions."""

    @property
    def kind(self) -> MaterialKind:
        """The kind of the material."""
        return KINDS[self.material]

    def completed(self, task: Task) -> Task:
        """The task of a file, with this method's ``uplink`` and ``downlink`` if the file has no such table.

        Defaults of :mod:`protocol.tasks.links` never change, because announcements omit them; those of a
        method may.
        """
        chosen: dict[str, Uplink | Downlink] = {"uplink": self.uplink, "downlink": self.downlink}
        left_out = chosen.keys() - task.model_fields_set
        return task.model_copy(update={name: chosen[name] for name in left_out})

    def configure(self, task: Task) -> C:
        """The task's ``config`` table, checked.

        Raises:
            Misconfigured: options are unknown or wrong, or the method cannot do such a task; the message
                names each.
        """
        last = _CONFIGURED.get(self.name)
        if last is not None and last[0] is self and last[1] is task:
            config: C = last[2]
            return config
        config = self._checked(task)
        _CONFIGURED[self.name] = self, task, config
        return config

    def _checked(self, task: Task) -> C:
        from pydantic import ValidationError  # noqa: PLC0415 - only on this path

        from protocol.errors import Misconfigured  # noqa: PLC0415

        if (self.material == "graph") != (task.graph is not None):
            wants = "a table [graph]" if self.material == "graph" else "labels and modalities, no [graph]"
            raise Misconfigured(f"task {task.name!r}: method {self.name!r} wants {wants}")
        if not self.robust_folds and task.robust.fold != "mean":
            raise Misconfigured(
                f"task {task.name!r}, method {self.name!r}: robust.fold = {task.robust.fold!r}: its updates "
                "cannot be compared value by value; leave it at 'mean'"
            )
        if not self.several_targets and (task.targets or task.input_names != task.modality_names):
            raise Misconfigured(
                f"task {task.name!r}, method {self.name!r}: targets, and modalities with input = false, are "
                "for methods that predict several things; this one predicts label"
            )
        parts = (key for key, group, _ in wanted(task) if group not in {METHODS, *self.own_parts})
        if trouble := next(parts, ""):
            known = ", ".join(self.own_parts) or "none"
            raise Misconfigured(
                f"task {task.name!r}, method {self.name!r}: {trouble}: it has no place for such a part of a "
                f"package (entry points that it takes: {known})"
            )
        if trouble := self._foreign_kind(task) or unlearnable(task, linear=self.linear):
            raise Misconfigured(f"task {task.name!r}, method {self.name!r}: {trouble}")
        try:
            config: C = _validated(self.config, json.dumps(task.config))
        except ValidationError as error:
            wrong = "; ".join(_words(self.config, fault) for fault in error.errors(include_url=False))
            raise Misconfigured(f"task {task.name!r}, method {self.name!r}: {wrong}") from None
        if task.local_privacy is not None and (trouble := self.not_local(config, task)):
            raise Misconfigured(f"task {task.name!r}, method {self.name!r}: [local_privacy]: {trouble}")
        if misfit := self.misfit(config, task):
            raise Misconfigured(f"task {task.name!r}, method {self.name!r}: config.{misfit}")
        return config

    def _foreign_kind(self, task: Task) -> str:
        """A modality or target of a kind that the method does not have, in words; empty: none."""
        for modality in task.modalities:
            if modality.kind not in self.modality_kinds:
                return (
                    f"modality {modality.name!r} is of kind {modality.kind!r}; this method learns from kinds "
                    f"{', '.join(self.modality_kinds)}"
                )
            if modality.augment is not None and not self.augments:
                return f"modality {modality.name!r}: this method has no augment; leave that table out"
        for target in task.targets:
            if target.modality and (kind := task.modality(target.modality).kind) not in self.generated_kinds:
                return (
                    f"target {target.name!r} is a modality of kind {kind!r}; this method generates kinds "
                    f"{', '.join(self.generated_kinds)}"
                )
        return ""

    def require_labelled(self, task: Task) -> None:
        """Check that a ``guided`` method's task names labelled windows.

        Raises:
            Misconfigured: it names none.
        """
        if self.guided and task.labelled is None:
            raise Misconfigured(
                f"task {task.name!r}: method {self.name!r} learns from labelled windows at the coordinator; "
                'name them: [labelled] file = "..."'
            )

    def _half(self, name: str) -> ModuleType:
        if not self.home:
            return import_module(f"models.methods.{self.name}.{name}")
        with from_source():
            return import_module(f"{self.home}.{name}")

    def server(self) -> Server:
        """The coordinator's half (NumPy)."""
        server: Server = self._half("server").make_server()
        return server

    def client(self, *, linear: bool = False) -> Client:
        """The device's half (may import torch: call it in the worker only); ``linear``: in NumPy."""
        client: Client = self._half("linear" if linear else "client").make_client()
        return client

    def trainer(self) -> ServerTrainer:
        """The coordinator's training of a ``guided`` method (imports torch: call it in the worker only)."""
        trainer: ServerTrainer = self._half("trainer").make_trainer()
        return trainer

    def blended(self, task: Task, state: Blobs, private: Tensors) -> Blobs:
        """A state with a device's private parts blended in, by the method's ``personal.py`` (NumPy).

        Args:
            task: with the options.
            state: at least the parts of :attr:`personal`.
            private: the device's tensors; names that the state lacks are ignored.

        Returns:
            The state; blobs that stay global are the same objects.
        """
        config = self.configure(task)
        if not self.personal(config):
            return state
        module = self._half("personal")
        blended: Blobs = module.blended(config, state, private)
        return blended

    def router(self) -> Router:
        """The gate of a ``routed`` method (NumPy)."""
        router: Router = self._half("router").make_router()
        return router

    def prototyper(self) -> Prototyper:
        """The half of a device that only sends prototypes (NumPy).

        Raises:
            Misconfigured: the method has no such role.
        """
        if not self.prototype_role:
            raise Misconfigured(f"method {self.name!r}: devices of role prototype cannot take part in it")
        prototyper: Prototyper = self._half("prototyper").make_prototyper()
        return prototyper


_CONFIGURED: Final[dict[str, tuple[MethodSpec[Any], Task, Any]]] = {}
"""By name, a method, the last task that it was configured for, and the result: devices ask often."""


@lru_cache(maxsize=64)
def _validated(config: type[C], text: str) -> C:
    """Options from JSON; they are immutable, and read several times in a round."""
    return config.model_validate_json(text, strict=True)


def _words(config: type[BaseModel], error: "ErrorDetails") -> str:
    """A wrong option: its key, the reason, and the value or the nearest option."""
    path = ".".join(["config", *map(str, error["loc"])])
    if error["type"] == "extra_forbidden":
        return f"{path}: no such option{_options(config, str(error['loc'][-1]))}"
    message = error["msg"].removeprefix("Value error, ")
    if not error["loc"]:  # of several options, which the message names
        return f"{path}: {message}"
    value = repr(error["input"])
    if error["type"] in _WANTED:
        marks = ", without quotation marks" if isinstance(error["input"], str) else ""
        message = f"{_WANTED[error['type']]}{marks}"
    return f"{path}: {message} (found {value if len(value) <= _FOUND else value[:_FOUND] + '...'})"


def _options(config: type[BaseModel], given: str) -> str:
    """All options, the most similar names first."""
    known = sorted(config.model_fields)
    known.sort(key=lambda name: difflib.SequenceMatcher(None, given, name).ratio(), reverse=True)
    near = difflib.get_close_matches(given, known, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"{hint} (options: {', '.join(known)})" if known else f"{hint} (it has none)"
