"""The task: what a fleet learns. Written as ``task.toml``, announced retained on ``b/task``.

The method's options are an opaque table here; the method checks them with its config model
(``models.registry``), so a new method needs no change in the protocol.
"""

from typing import Annotated, Final, Literal, Self

from pydantic import Field, JsonValue, model_validator

from protocol.base import Label, Name, Share, Wire
from protocol.tasks.folding import Aggregator, Robust
from protocol.tasks.holdout import Holdout
from protocol.tasks.labelling import Labelling
from protocol.tasks.links import Downlink, Uplink
from protocol.tasks.options import KnowledgeGraphTask

ModalityName = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,31}$")]
"""Also a part of tensor names and the name of an ONNX input: no dot."""
MAX_WINDOW_VALUES: Final = 1 << 22
"""Maximum values of one window, all modalities (16 MB), and of the windows cut in a second."""
MAX_OVERLAP: Final = 1024
"""Maximum ratio of ``length_s`` to ``stride_s``."""
LABEL: Final = "label"
"""Name of the first target, with the classes ``Task.labels``."""
RESERVED: Final = frozenset({LABEL, "target", "present", "probabilities", "logits"})
"""Reserved: label tracks of recordings, inputs and outputs of the ONNX model."""


class Modality(Wire):
    """One sensor stream. ``low``/``high`` bound a physically possible value, in ``unit``."""

    name: ModalityName
    channels: Annotated[int, Field(ge=1, le=64)]
    rate_hz: Annotated[float, Field(ge=1e-6, le=20_000)]
    unit: Label = "1"
    low: float | None = None
    high: float | None = None
    offset: float = 0.0
    """Subtracted before the network, in ``unit``."""
    scale: Annotated[float, Field(gt=0)] = 1.0
    """Divided by before the network, in ``unit``; part of the exported model."""
    input: bool = True
    """False: no device reads it to predict; it is only generated (``Target.modality``)."""


class Target(Wire):
    """A predicted quantity (a downstream task).

    ``classification``: one of ``labels``. ``regression``: one number, in ``unit``. ``generation``: the window
    of a modality; it needs no labels, because the modality is recorded.
    """

    name: ModalityName
    kind: Literal["classification", "regression", "generation"] = "classification"
    labels: Annotated[tuple[Label, ...], Field(max_length=1024)] = ()
    modality: ModalityName | None = None
    unit: Label = "1"
    offset: float = 0.0
    """Regression: the network learns ``(value - offset) / scale``."""
    scale: Annotated[float, Field(gt=0)] = 1.0

    @model_validator(mode="after")
    def _says_what_its_kind_needs(self) -> Self:
        if (self.kind == "classification") != bool(self.labels) or len(self.labels) == 1:
            raise ValueError(f"target {self.name!r}: labels: two or more for a classification, else none")
        if len(set(self.labels)) != len(self.labels):
            raise ValueError(f"target {self.name!r}: a label is named twice")
        if (self.kind == "generation") != (self.modality is not None):
            raise ValueError(f"target {self.name!r}: modality: what a generation makes, and of no other kind")
        return self


class Window(Labelling):
    """How streams are cut. Modalities share the time axis; each has ``round(length_s * rate_hz)`` samples."""

    length_s: Annotated[float, Field(ge=0.001, le=3600)] = 2.56
    stride_s: Annotated[float, Field(ge=0.001, le=3600)] = 1.28
    max_gap_s: Annotated[float, Field(gt=0, le=3600)] = 0.2
    """Gaps between samples longer than this are not interpolated: values in them are missing."""
    min_coverage: Annotated[float, Field(gt=0, le=1)] = 0.75
    """A modality is present in a window if at least this share of its grid points is covered."""
    context_s: Annotated[float, Field(gt=0, le=3600)] | None = None
    """Seconds of stream that are stored with each window, up to its end, for methods that learn from context
    (``WindowSet.context``); at least ``length_s``. None: the window alone."""


class Encoder(Wire):
    """The network of one modality."""

    kind: Literal["cnn1d", "lstm"] = "cnn1d"
    width: Annotated[int, Field(ge=4, le=1024)] = 32
    """Channels of the first convolution, or hidden units of the LSTM."""
    depth: Annotated[int, Field(ge=1, le=8)] = 5
    """Convolutions, or stacked LSTM layers."""


class Network(Wire):
    """Encoders by modality name (absent: the default encoder), one feature size for all, one head."""

    encoders: dict[Name, Encoder] = Field(default_factory=dict)
    feature_dim: Annotated[int, Field(ge=4, le=1024)] = 128
    hidden_dim: Annotated[int, Field(ge=4, le=4096)] = 128


class Bandit(Wire):
    """Selection by a discounted upper confidence bound: ``coordinator.selection.policies.bandit``."""

    discount: Annotated[float, Field(gt=0, le=1)] = 0.9
    """Discount of earlier observations, by round."""
    explore: Annotated[float, Field(ge=0, le=1000)] = 1.0
    """Weight of the exploration term for rarely seen devices and experts; 1 in the paper."""


class Rounds(Wire):
    """When a round opens and closes. Quorum is over the *set* of selected devices that have delivered."""

    count: Annotated[int, Field(ge=1, le=100_000)] = 10
    deadline_s: Annotated[float, Field(gt=0, le=7 * 86400)] = 120.0
    devices_per_round: Annotated[int, Field(ge=1, le=100_000)] | None = None
    """None selects every eligible device that is online."""
    selection: Name = "coverage"
    """Selection policy if there are more: a module of ``coordinator.selection.policies``."""
    bandit: Bandit = Bandit()
    """Options of ``selection = "bandit"``."""
    quorum: Share = 1.0
    """The round closes early after this share of the selected devices has delivered."""
    min_devices: Annotated[int, Field(ge=1, le=100_000)] = 1
    """With fewer at the deadline the round is abandoned and opened again."""
    patience: Annotated[int, Field(ge=0, le=100_000)] = 10
    """The rounds end after this many versions in a row without a gain; 0: never. Gains are in the metric of
    ``[evaluation]`` at the coordinator, whose windows then are validation data; without one, versions gain
    while they still move."""
    gain: Share = 0.002
    """An improvement of accuracy (or mrr) that counts as a gain."""
    min_windows: Annotated[int, Field(ge=1, le=10_000_000)] = 32
    """An eligible device has at least this many windows to learn from: labelled ones if the method needs
    labels on devices."""
    answer_within_s: Annotated[float, Field(ge=0, le=7 * 86400)] | None = None
    """The selected devices begin within this time after a round opens, each at its own moment; at most half
    of ``deadline_s``. None: 5 ms a device."""


class Labelled(Wire):
    """Labelled windows at the coordinator (``[labelled]``), for guided methods; they are not announced."""

    file: Annotated[str, Field(min_length=1, max_length=1024)]
    """A window set (npz), or a recording with labels (npz, csv, parquet), relative to the task file."""
    label_column: Annotated[str, Field(min_length=1, max_length=128)] = "label"
    """csv and parquet: the column with the class, by name or by index; an empty cell: none."""
    recording_column: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    """csv and parquet: the column that names a row's recording; no window spans two recordings."""


class Task(Wire):
    """One fleet's learning task: windows of streams (``labels``, ``modalities``), or knowledge graphs."""

    name: Name
    method: Name = "qqr"
    labels: Annotated[tuple[Label, ...], Field(max_length=1024)] = ()
    """Classes of windows: two or more; none on knowledge graphs."""
    modalities: Annotated[tuple[Modality, ...], Field(max_length=16)] = ()
    """Sensor streams: one or more; none on knowledge graphs (``graph.features`` are the modalities)."""
    graph: KnowledgeGraphTask | None = None
    """The task learns facts about entities, not windows."""
    targets: Annotated[tuple[Target, ...], Field(max_length=15)] = ()
    """Further targets besides ``labels``; a device learns those that it has labels for."""
    window: Window = Window()
    network: Network = Network()
    rounds: Rounds = Rounds()
    uplink: Uplink = Uplink()
    downlink: Downlink = Downlink()
    robust: Robust = Robust()
    aggregator: Aggregator = Aggregator()
    labelled: Labelled | None = None
    holdout: Holdout = Holdout()
    config: dict[str, JsonValue] = Field(default_factory=dict)
    """Options of the method, checked by its config model."""
    seed: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0

    @model_validator(mode="after")
    def _require_one_material(self) -> Self:
        if self.graph is None:
            if len(self.labels) < 2:  # noqa: PLR2004 - one class is nothing to tell apart
                raise ValueError(f"labels: two or more are needed, found {len(self.labels)}")
            if not self.modalities:
                raise ValueError(
                    "modalities: one or more are needed (a task on knowledge graphs has a table [graph])"
                )
            return self
        for key in ("labels", "modalities", "targets", "labelled"):
            if getattr(self, key):
                raise ValueError(f"{key}: a task with [graph] learns facts and not windows; leave it out")
        return self

    @model_validator(mode="after")
    def _names_are_consistent(self) -> Self:
        if self.graph is not None:
            return self
        names = [m.name for m in self.modalities]
        for what, listed in (("modality", names), ("label", list(self.labels))):
            twice = sorted({n for n in listed if listed.count(n) > 1})
            if twice:
                raise ValueError(f"{what} named twice: {', '.join(twice)}")
        taken = sorted(RESERVED.intersection(names))
        if taken:
            raise ValueError(f"modality {taken[0]!r}: the name has a meaning of its own; choose another")
        if not any(m.input for m in self.modalities):
            raise ValueError("no modality is an input")
        stray = sorted(set(self.network.encoders) - set(names))
        if stray:
            known = ", ".join(names)
            raise ValueError(f"network.encoders: unknown modalities: {', '.join(stray)} (known: {known})")
        return self

    @model_validator(mode="after")
    def _targets_are_consistent(self) -> Self:
        names = [target.name for target in self.targets]
        twice = sorted(
            {n for n in names if names.count(n) > 1} | ({*self.modality_names, *RESERVED} & {*names})
        )
        if twice:
            raise ValueError(f"target {twice[0]!r}: the name is taken; choose another")
        for target in self.targets:
            if target.modality is not None and target.modality not in self.modality_names:
                known = ", ".join(self.modality_names)
                raise ValueError(f"target {target.name!r}: no modality {target.modality!r} (known: {known})")
        return self

    @model_validator(mode="after")
    def _a_window_fits_into_memory(self) -> Self:
        if trouble := self.holdout.trouble(
            self.graph is not None, self.window.length_s, self.window.context_s
        ):
            raise ValueError(trouble)
        if self.window.context_s is not None and self.window.context_s < self.window.length_s:
            raise ValueError("window.context_s: under window.length_s; leave it out to keep windows alone")
        values = sum(m.channels * self.context_samples(m.name) for m in self.modalities)
        if values > MAX_WINDOW_VALUES:
            what = "length_s: a window" if self.window.context_s is None else "context_s: a window's context"
            raise ValueError(f"window.{what} has {values} values, at most {MAX_WINDOW_VALUES}")
        if values > MAX_WINDOW_VALUES * self.window.stride_s:
            raise ValueError(f"window.stride_s: a device would cut over {MAX_WINDOW_VALUES} values a second")
        if self.window.length_s > MAX_OVERLAP * self.window.stride_s:
            raise ValueError(f"window.stride_s: under a {MAX_OVERLAP}th of window.length_s")
        return self

    def modality(self, name: str) -> Modality:
        """The modality of that name.

        Raises:
            KeyError: unknown; the message lists the known ones.
        """
        for modality in self.modalities:
            if modality.name == name:
                return modality
        raise KeyError(
            f"task {self.name!r} has no modality {name!r}; it has {', '.join(self.modality_names)}"
        )

    @property
    def objectives(self) -> tuple[Target, ...]:
        """All targets, that of ``labels`` first; none on knowledge graphs, which predict entities."""
        return (Target(name=LABEL, labels=self.labels), *self.targets) if self.graph is None else ()

    @property
    def target_names(self) -> tuple[str, ...]:
        """Names of :attr:`objectives`, in their order."""
        return (LABEL, *(target.name for target in self.targets)) if self.graph is None else ()

    def target(self, name: str) -> Target:
        """The objective of that name.

        Raises:
            KeyError: unknown; the message lists the known ones.
        """
        for target in self.objectives:
            if target.name == name:
                return target
        raise KeyError(f"task {self.name!r} has no target {name!r}; it has {', '.join(self.target_names)}")

    @property
    def input_names(self) -> tuple[str, ...]:
        """The modalities that may be read to predict, in the task's order."""
        return self.modality_names if self.graph else tuple(m.name for m in self.modalities if m.input)

    @property
    def modality_names(self) -> tuple[str, ...]:
        """Names in the task's order, the order of columns in every availability mask."""
        return tuple(m.name for m in (self.modalities if self.graph is None else self.graph.features))

    @property
    def classes(self) -> int:
        """Length of an update's ``counts`` of a modality: the number of classes; 1 on knowledge graphs."""
        return len(self.labels) if self.graph is None else 1

    def samples(self, name: str) -> int:
        """Grid points of a window of that modality (the T of ``x_BCT``)."""
        return max(1, round(self.window.length_s * self.modality(name).rate_hz))

    def context_samples(self, name: str) -> int:
        """Grid points of a window's context of that modality (the L of ``x_BCL``); at least a window's."""
        seconds = self.window.context_s or self.window.length_s
        return max(self.samples(name), round(seconds * self.modality(name).rate_hz))

    def encoder(self, name: str) -> Encoder:
        """The encoder chosen for that modality."""
        return self.network.encoders.get(name, Encoder())
