"""DisentAFL: devices with different sensors and tasks share a supernet by its experts. Torch-free.

Each knowledge type of (11) is a blob of its own; a device holds those of its route (``names.py``), and each
is averaged over the devices that hold it. The paper's "task" is a :class:`protocol.tasks.task.Target` here.
Where
the paper leaves a choice:

- The supernet: a modality's window is cut into at most ``tokens`` patches, which are embedded and pass
  attention layers with MoDE on query and value; their mean is ``h' = [h_share | h_m]``. There is no
  cross-attention between modalities: a device without one has nothing to attend to, and they meet in MoME.
- Images are cut into square tiles; sound whose encoder is ``mel`` becomes a spectrogram first, and counts of
  a text their weights. Sound and texts are not generated: a linear layer makes no wave, and no words.
- The modality-shared representation is the mean of ``h_share`` over the modalities that are present.
- MoTE's experts are linear, so that Z may have any sign; the activation (GELU) stands before MoME's.
- The windows that judge a domain are drawn anew in every round: little data is all needed to train.
- Distillation (-KD) draws a window's ``Z[m, o]`` to the fleet's mean of its class of o, and ``Z[m, shared]``
  to that of each target's class in turn. Of a regression or a generation, which has no classes, it draws the
  batch's mean: one row for all windows would leave nothing to tell them apart by.
- (m, o) names one knowledge type in (11): MoTE's expert and MoME's travel together.
- L_orth is the mean squared cosine between pairs of knowledge types: the paper's sum of inner products has no
  lower bound. L_align is the mean squared distance of ``h_share`` over pairs of different modalities: the
  paper's formula subtracts a term from itself.
- The domain gate scores what it may choose: it is trained to give the validation accuracy that was seen with
  a domain (``gate.py``), and chooses the largest, epsilon-greedy.
- The mean over the devices that hold a knowledge type is plain: every weight is 1.
"""

from collections.abc import Iterable
from itertools import product
from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from models.spec import MethodSpec
from protocol.base import Frozen, Share
from protocol.tasks.task import Task

Positive = Annotated[float, Field(gt=0, le=10)]
Weight = Annotated[float, Field(ge=0, le=1000)]
Family = Literal["mode", "mote", "mome"]


SHARED: Final = "_shared"
"""In place of a modality or a target: what all of them share. No modality or target can have this name."""


class DisentAflConfig(Frozen):
    """Options of the task's ``config`` table. The paper's values stand behind each option that differs."""

    width: Annotated[int, Field(ge=8, le=4096)] = 64
    """d, of ``h'``: half is shared, half private. 768."""
    latent: Annotated[int, Field(ge=4, le=1024)] = 32
    """d_latent, of a knowledge type in Z. 128."""
    domains: Annotated[int, Field(ge=1, le=64)] = 3
    """D, MoDE's experts of a modality. 3."""
    bottleneck: Annotated[int, Field(ge=1, le=1024)] = 8
    """Of a MoDE expert. 64."""
    tokens: Annotated[int, Field(ge=1, le=512)] = 16
    """A window becomes at most so many patches."""
    layers: Annotated[int, Field(ge=1, le=12)] = 1
    """Of attention, in each modality's encoder."""
    heads: Annotated[int, Field(ge=1, le=64)] = 4
    hidden: Annotated[int, Field(ge=4, le=4096)] = 64
    """Of a decoder, before its last layer. 128."""
    align: Weight = 0.1
    """Weight of L_align. 1.2; 0 is off."""
    orthogonal: Weight = 0.1
    """Weight of L_orth. 4; 0 is off."""
    families: tuple[Family, ...] = ("mode", "mote", "mome")
    """Expert families that there are. Without ``mode`` an encoder has no domain experts; without ``mote`` all
    targets share MoTE's expert of a modality; without ``mome`` all modalities share MoME's expert of a target
    (the study's ablations)."""
    aggregate: Literal["avg", "kd"] = "avg"
    """What the fleet shares: ``avg``, the weights of each knowledge type (DisentAFL-Avg); ``kd``, by
    knowledge type and class the mean feature in Z, towards which devices distil (DisentAFL-KD): weights never
    leave."""
    distil: Weight = 0.8
    """Weight of the distillation loss with ``kd``. 0.8."""
    last_layer: Literal["private", "both", "shared", "interpolated"] = "interpolated"
    """Of each decoder: ``private``, the device's own, which never leaves it (the paper's concept drift);
    ``both``, the same, and a second one that is averaged, for devices that have none of their own, evaluation
    and export; ``shared``, averaged like the rest; ``interpolated``, averaged, and a device predicts with a
    blend of the fleet's and its own."""
    last_share: Share = 0.5
    """Interpolated: weight of the device's own last layer in that blend."""
    own_share: Share = 0.0
    """Not in the paper: a round begins with, and the device predicts with, this share of the weights that it
    trained last and the rest of the fleet's, in every knowledge type but the last layer, which has its own
    rule. Sharing pays where devices are alike, and costs where they are not; this is between. 0 is the
    paper."""
    epsilon: Share = 0.3
    """The domain gate tries a domain at random with this probability. 0.3."""
    gate_hidden: Annotated[int, Field(ge=1, le=1024)] = 8
    gate_lr: Positive = 0.05
    gate_memory: Annotated[int, Field(ge=1, le=4096)] = 64
    """Pairs (domain, validation accuracy) that a device remembers, the newest."""
    validation: Annotated[float, Field(ge=0, lt=0.9)] = 0.2
    """Share of a device's windows that judge its domain and do not train, drawn anew in each round. 0: all
    train, and judge the domain before that, as it comes from the fleet."""
    lr: Positive = 0.002
    """Adam's. 0.015, which diverges at small widths."""
    lr_decay: Annotated[float, Field(gt=0, le=1)] = 1.0
    keep_moments: bool = True
    """Adam's running means stay on the device from round to round (twice the route's size on its disk).
    False: they begin anew in each round."""
    weight_decay: Annotated[float, Field(ge=0, lt=1)] = 0.0
    batch: Annotated[int, Field(ge=2, le=65536)] = 64
    epochs: Annotated[int, Field(ge=1, le=1000)] = 1
    max_delta: Annotated[float, Field(gt=0, le=1024)] = 16.0
    """An update whose tensors move further than this in any value is refused."""

    @model_validator(mode="after")
    def _sizes_fit(self) -> Self:
        if self.width % (2 * self.heads):
            raise ValueError(f"width {self.width} is no multiple of twice heads ({2 * self.heads})")
        if len(set(self.families)) != len(self.families):
            raise ValueError("families: one is named twice")
        return self


def _personal(config: DisentAflConfig) -> tuple[str, ...]:
    if config.aggregate == "kd":
        return ("base", "domain", "expert", "decoder", "last")
    last = () if config.last_layer == "shared" else ("last",)
    return (("base", "domain", "expert", "decoder") if config.own_share else ()) + last


def experts(names: Iterable[str]) -> frozenset[str]:
    """The paper's experts (m, o, d) among the blobs of a route or of an update, for the bandit's P_k.

    I x O x D of what the blobs read, predict and hold domain experts of; what is shared has no part in it.
    Without domain experts, and with ``kd``, which sends none, d is left out.
    """
    blobs = [(part, *rest.rpartition(".")[::2]) for part, _, rest in (name.partition("/") for name in names)]
    pairs = {(m, o) for part, m, o in blobs if part in {"expert", "features"} and SHARED not in {m, o}}
    kd = any(part == "features" for part, _, _ in blobs)
    domains = {d for part, _, d in blobs if part == "domain"} if not kd else set()
    return frozenset(f"{m}.{o}.{d}" for (m, o), d in product(pairs, domains or {""}))


def _not_private(config: DisentAflConfig, _task: Task) -> str:
    if config.aggregate == "kd":
        return "config.aggregate = 'kd' sends rows of features, which one clip does not cover; write 'avg'"
    return ""


METHOD = MethodSpec(
    name="disentafl",
    title="Modality-task agnostic federated learning by routed experts",
    paper="Chen and Zhang, On Disentanglement of Asymmetrical Knowledge Transfer for Modality-Task Agnostic "
    "Federated Learning, AAAI 2024",
    config=DisentAflConfig,
    class_rows=lambda name: name.split("/")[1] if name.startswith("last/") else "",
    summed=True,
    not_private=_not_private,
    needs_labels=True,
    symbols={
        "M": "inputs (task.input_names)",
        "O": "targets (task.objectives)",
        "D": "domains",
        "phi_BE": "base/<modality>",
        "phi_mode^d": "domain/<modality>.<d>",
        "phi_mote, theta_mome": "expert/<modality>.<target>",
        "theta_BD": "decoder/<target>",
        "theta_final": "last/<target>",
        "psi": "gate/<modality>",
        "S_i": "names.pairs",
        "g_i": "domain",
        "Z": "z_BMOF",
    },
    personal=_personal,
    bounded=("gate",),
    optimised=("base", "domain", "expert", "decoder", "last"),
    rounded=("base", "domain", "expert", "decoder", "last"),
    routed=True,
    experts=experts,
    several_targets=True,
    generated_kinds=("stream", "image", "vector"),
)
