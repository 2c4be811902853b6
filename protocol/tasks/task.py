"""The task: what a fleet learns. Written as ``task.toml``, announced retained on ``b/task``.

The method checks its options itself (``models.registry``): a new one needs no change here.
"""

from typing import Annotated, Final, Literal, Self

from pydantic import Field, JsonValue, model_validator

from protocol.base import Label, Name, Wire
from protocol.tasks.folding import Aggregator, LocalPrivacy, Privacy, Robust, SecureAggregation
from protocol.tasks.holdout import Holdout
from protocol.tasks.kinds import (
    KINDS,
    NOT_BEHIND_BACKBONES,
    Augment,
    Backbone,
    ModalityKind,
    backbone_trouble,
    with_encoder_kinds,
)
from protocol.tasks.labelling import Labelled, Labelling, window_trouble
from protocol.tasks.links import Downlink, Uplink
from protocol.tasks.network import (
    Encoder,
    Network,
    Package,
    trouble_with_encoders,
    trouble_with_linear,
    trouble_with_packages,
)
from protocol.tasks.options import KnowledgeGraphTask
from protocol.tasks.rounds import Rounds

ModalityName = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,31}$")]
"""Also a part of tensor names and the name of an ONNX input: no dot."""
LABEL: Final = "label"
"""Name of the first target, with the classes ``Task.labels``."""
RESERVED: Final = frozenset({LABEL, "target", "present", "probabilities", "logits"})
"""Reserved: label tracks of recordings, inputs and outputs of the ONNX model."""


class Modality(Wire):
    """What one sensor delivers. ``low``/``high`` bound a physically possible value, in ``unit``."""

    name: ModalityName
    kind: Annotated[ModalityKind, Field(exclude_if=lambda kind: kind == "stream")] = "stream"
    """Streams and sound are samples on a grid; of images, vectors and texts a window holds the newest one."""
    channels: Annotated[int, Field(ge=1, le=4096)]
    """Of one sample or pixel; size of a vector; number of buckets in which n-grams of a text are counted."""
    height: Annotated[int, Field(ge=1, le=2048)] | None = None
    """Rows of an image."""
    width: Annotated[int, Field(ge=1, le=2048)] | None = None
    """Columns of an image."""
    rate_hz: Annotated[float, Field(ge=1e-6, le=48_000)]
    """Of the grid that samples are interpolated onto: the sensor's own, or near it; or frames in a second."""
    unit: Label = "1"
    low: float | None = None
    high: float | None = None
    offset: float = 0.0
    """Subtracted before the network, in ``unit``."""
    scale: Annotated[float, Field(gt=0)] = 1.0
    """Divided by before the network, in ``unit``; part of the exported model."""
    input: bool = True
    """False: no device reads it to predict; it is only generated (``Target.modality``)."""
    augment: Annotated[Augment | None, Field(exclude_if=lambda augment: augment is None)] = None
    """Random changes of training windows."""
    backbone: Annotated[Backbone | None, Field(exclude_if=lambda one: one is None)] = None
    """A frozen network in front."""
    sensed: Annotated["Modality | None", Field(exclude_if=lambda one: one is None)] = None
    """Of an announced task: what the sensor delivers, of which the backbone makes this vector."""

    @property
    def learned_kind(self) -> ModalityKind:
        """The kind that the encoder gets."""
        return "vector" if self.backbone else self.kind

    @property
    def framed(self) -> bool:
        """Whether a window holds one frame, not samples on a grid."""
        return KINDS[self.kind].framed

    @property
    def points(self) -> int:
        """Of an image: pixels of a frame, row by row; else 1."""
        return (self.height or 1) * (self.width or 1)

    @property
    def sample_values(self) -> int:
        """Values of one sample: the channels; of a framed modality all values of a frame, channel first."""
        return self.channels * self.points

    @model_validator(mode="after")
    def _says_what_its_kind_needs(self) -> Self:
        size = self.height, self.width
        if trouble := KINDS[self.kind].trouble(self.channels, self.rate_hz, size, self.augment):
            raise ValueError(f"modality {self.name!r} of kind {self.kind!r}: {trouble}")
        inner = self.sensed
        sensed = None if inner is None else (not inner.sensed and inner.backbone) or Backbone()
        if trouble := backbone_trouble(self.backbone, sensed, (self.kind, self.channels), self.augment):
            raise ValueError(f"modality {self.name!r}: {trouble}")
        return self


class Target(Wire):
    """A predicted quantity.

    ``classification``: one of ``labels``. ``regression``: one number, in ``unit``. ``generation``: the window
    of a modality, without labels.
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
    """Seconds of stream stored with each window, up to its end, for methods that learn from context; at least
    ``length_s``. None: the window alone."""


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
    packages: Annotated[tuple[Package, ...], Field(max_length=4)] = ()
    """Python packages that parts of the network, or the method, come from."""
    rounds: Rounds = Rounds()
    uplink: Uplink = Uplink()
    downlink: Downlink = Downlink()
    robust: Robust = Robust()
    aggregator: Aggregator = Aggregator()
    labelled: Labelled | None = None
    holdout: Holdout = Holdout()
    privacy: Annotated[Privacy | None, Field(exclude_if=lambda one: one is None)] = None
    """Clipping and noise that protect single devices."""
    local_privacy: Annotated[LocalPrivacy | None, Field(exclude_if=lambda one: one is None)] = None
    """Clipping and noise on each device, that protect single windows also from the coordinator."""
    secure_aggregation: Annotated[SecureAggregation | None, Field(exclude_if=lambda one: one is None)] = None
    """Rounds in which no single update is seen."""
    config: dict[str, JsonValue] = Field(default_factory=dict)
    """Options of the method, checked by its config model."""
    seed: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0

    @model_validator(mode="before")
    @classmethod
    def _complete_encoders(cls, task: object) -> object:
        """Write the kinds of encoders whose table has none, so that equal tasks are announced alike."""
        return with_encoder_kinds(task)

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
            if twice := sorted({n for n in listed if listed.count(n) > 1}):
                raise ValueError(f"{what} named twice: {', '.join(twice)}")
        if taken := sorted(RESERVED.intersection(names)):
            raise ValueError(f"modality {taken[0]!r}: the name has a meaning of its own; choose another")
        if not any(m.input for m in self.modalities):
            raise ValueError("no modality is an input")
        kinds = {m.name: (m.learned_kind, self.encoder(m.name).kind or "") for m in self.modalities}
        wide = {m.name: m.channels * self.samples(m.name) for m in self.modalities if m.backbone is None}
        trouble = trouble_with_encoders(self.network, kinds) or trouble_with_linear(self.network, wide)
        if trouble := trouble or trouble_with_packages(self.network, self.packages):
            raise ValueError(trouble)
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
        values = sum(
            max(one.channels * self._points(one, context=True) for one in (m, m.sensed) if one)
            for m in self.modalities
        )
        window = self.window
        if trouble := window_trouble(values, window.length_s, window.stride_s, window.context_s):
            raise ValueError(trouble)
        generated = {target.modality for target in self.targets}
        for one in self.modalities:
            bare = window.context_s is None and one.input and one.name not in generated
            if (one.backbone or one.sensed) and not bare:
                raise ValueError(f"modality {one.name!r}: backbone: not with {NOT_BEHIND_BACKBONES}")
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
        """Grid points of a window of that modality, or those of its frame (the T of ``x_BCT``)."""
        return self._points(self.modality(name))

    def _points(self, one: Modality, *, context: bool = False) -> int:
        """As :meth:`samples` of a modality, or as :meth:`context_samples`."""
        if one.framed:
            return one.points
        samples = max(1, round(self.window.length_s * one.rate_hz))
        return max(samples, round((self.window.context_s or 0.0) * one.rate_hz)) if context else samples

    def context_samples(self, name: str) -> int:
        """Grid points of a window's context of that modality (the L of ``x_BCL``); at least a window's.

        Frames have no context but the window.
        """
        return self._points(self.modality(name), context=True)

    def encoder(self, name: str) -> Encoder:
        """The encoder chosen for that modality, with its kind."""
        encoder = self.network.encoders.get(name, Encoder())
        default = KINDS[self.modality(name).learned_kind].encoders[0]
        return encoder if encoder.kind is not None else encoder.model_copy(update={"kind": default})
