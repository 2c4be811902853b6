"""What a method folder's ``__init__`` says about its method, and how its halves are made. Torch-free."""

import difflib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from pydantic import BaseModel

from models.contract import Blobs, Client, Prototyper, Router, Server, Tensors
from models.guided import ServerTrainer
from models.materials import KINDS, MaterialKind, MaterialName
from protocol.frames.tensors import Codec
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
"""A message shows so many characters of a wrong value."""


@dataclass(frozen=True)
class MethodSpec(Generic[C]):
    """What a method folder's ``__init__`` says about it; generic over the options. Torch-free."""

    name: str
    title: str
    paper: str
    config: type[C]
    needs_labels: bool
    may_miss_modality: bool
    symbols: Mapping[str, str] = field(default_factory=dict)
    """The paper's symbol -> our name."""
    prototype_role: bool = False
    """Devices without torch can teach the fleet by prototypes alone: there is a ``prototyper.py``."""
    trains: Callable[[Any], bool] = lambda _config: True
    """Whether devices train under a config. Where they do not, devices of role ``prototype`` alone can make a
    round; where they do, a round needs a device that trains."""

    personal: Callable[[Any], tuple[str, ...]] = lambda _config: ()
    """The parts of a state (first words of blob names) that a device keeps its own of, under a config; then
    there is a ``personal.py``."""

    noise: Callable[[Any], float] = lambda _config: 0.0
    """The noise that protects single windows in all that devices send under a config, in sensitivities of
    what it is added to (differential privacy); 0: none. With noise the method charges each release to the
    account of ``models/privacy/account.py``."""

    bounded: tuple[str, ...] = ()
    """The parts of a state (first words of blob names) whose updates the server bounds tightly by itself: how
    far they go is chance, and they are not compared with those of other devices."""

    routed: bool = False
    """Devices hold parts of the model, by what they read and predict: there is a ``router.py``, the server is
    a :class:`RoutedServer`, and each kind of device gets a bundle of its own."""
    guided: bool = False
    """The coordinator looks at each update through its labelled windows before it folds, and trains on them
    after: the task has ``labelled``, there is a ``trainer.py``, and the server is a :class:`GuidedServer`."""
    optimised: tuple[str, ...] = ("encoder", "head")
    """The parts of a state (first words of blob names) that ``task.aggregator`` steps; the others become what
    the fold says. Running statistics never are stepped."""
    tunable: tuple[str, ...] = ()
    """Options, by how their names begin, that may change between restarts of a coordinator: of what it trains
    and weighs by itself, on which no version's shape and no device depends."""
    several_targets: bool = False
    """Takes tasks with ``targets`` besides ``labels``, and modalities that are no inputs."""
    material: MaterialName = "windows"
    """What devices learn from: tasks have ``labels`` and ``modalities``, or a table ``graph``."""
    owned: tuple[str, ...] = ()
    """The parts of a state (first words of blob names) of which each device has a blob of its own,
    ``<part>/<device>``: on that device's route where it is there, served to nobody else, and no part of what
    is exported or judged."""
    one_model: bool = False
    """What devices run is the same for all versions of a task (they feed it what a version changes): it is
    exported once, and packed again for each version."""
    beyond: Callable[[Task], int] = lambda _task: 0
    """Elements that an update may hold at most beyond one of each tensor of the model."""
    codecs: Mapping[str, Codec] = field(default_factory=dict)
    """How tensors of a version are stored and travel down, by the last part of their names; float32 where not
    named. Only codecs that give back what ``Fold.close`` made, to the bit."""
    robust_folds: bool = True
    """Whether ``task.robust.fold`` may be other than ``mean``."""
    reported: tuple[str, ...] = ()
    """Metrics of updates whose mean over devices, by their samples, is a version's: where the coordinator has
    nothing to judge versions on."""

    @property
    def kind(self) -> MaterialKind:
        """Of the material."""
        return KINDS[self.material]

    def configure(self, task: Task) -> C:
        """The task's ``config`` table, checked.

        Raises:
            Misconfigured: options are unknown or wrong, or the method cannot do such a task; the message
                names each.
        """
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
        try:
            return self.config.model_validate_json(json.dumps(task.config), strict=True)
        except ValidationError as error:
            wrong = "; ".join(_words(self.config, one) for one in error.errors(include_url=False))
            raise Misconfigured(f"task {task.name!r}, method {self.name!r}: {wrong}") from None

    def require_labelled(self, task: Task) -> None:
        """Whether the coordinator has what a ``guided`` method learns from; devices are not told of it.

        Raises:
            Misconfigured: it is not named.
        """
        from protocol.errors import Misconfigured  # noqa: PLC0415 - only on this path

        if self.guided and task.labelled is None:
            raise Misconfigured(
                f"task {task.name!r}: method {self.name!r} learns from labelled windows at the coordinator; "
                'name them: [labelled] file = "..."'
            )

    def server(self) -> Server:
        """The coordinator's half (NumPy)."""
        made: Server = import_module(f"models.methods.{self.name}.server").make_server()
        return made

    def client(self) -> Client:
        """The device's half (may import torch: call it in the worker only)."""
        made: Client = import_module(f"models.methods.{self.name}.client").make_client()
        return made

    def trainer(self) -> ServerTrainer:
        """What a ``guided`` method trains at the coordinator (imports torch: call it in the worker only)."""
        made: ServerTrainer = import_module(f"models.methods.{self.name}.trainer").make_trainer()
        return made

    def blended(self, task: Task, state: Blobs, private: Tensors) -> Blobs:
        """A state as a device's own predictions use it, by the method's ``personal.py`` (NumPy).

        Args:
            task: its config says what is personal.
            state: at least the parts of :attr:`personal`.
            private: what the device keeps; names that the state does not have are passed over.

        Returns:
            The state; blobs that stay global are the same objects.
        """
        config = self.configure(task)
        if not self.personal(config):
            return state
        module = import_module(f"models.methods.{self.name}.personal")
        made: Blobs = module.blended(config, state, private)
        return made

    def router(self) -> Router:
        """The gate of a ``routed`` method (NumPy)."""
        made: Router = import_module(f"models.methods.{self.name}.router").make_router()
        return made

    def prototyper(self) -> Prototyper:
        """The half of a device that only sends prototypes (NumPy).

        Raises:
            Misconfigured: the method has no such role.
        """
        from protocol.errors import Misconfigured  # noqa: PLC0415 - only on this path

        if not self.prototype_role:
            raise Misconfigured(f"method {self.name!r}: devices of role prototype cannot take part in it")
        made: Prototyper = import_module(f"models.methods.{self.name}.prototyper").make_prototyper()
        return made


def _words(config: type[BaseModel], error: "ErrorDetails") -> str:
    """One wrong option: its key, why, and what was found or meant."""
    path = ".".join(["config", *map(str, error["loc"])])
    if error["type"] == "extra_forbidden":
        return f"{path}: no such option{_options(config, str(error['loc'][-1]))}"
    message = error["msg"].removeprefix("Value error, ")
    if not error["loc"]:  # of several options together: the words name them
        return f"{path}: {message}"
    found = repr(error["input"])
    if error["type"] in _WANTED:
        marks = ", without quotation marks" if isinstance(error["input"], str) else ""
        message = f"{_WANTED[error['type']]}{marks}"
    return f"{path}: {message} (found {found if len(found) <= _FOUND else found[:_FOUND] + '...'})"


def _options(config: type[BaseModel], given: str) -> str:
    """All options there are, those that are spelt most alike first."""
    known = sorted(config.model_fields)
    known.sort(key=lambda name: difflib.SequenceMatcher(None, given, name).ratio(), reverse=True)
    near = difflib.get_close_matches(given, known, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"{hint} (options: {', '.join(known)})" if known else f"{hint} (it has none)"
