"""TACTFL: devices learn without labels, the coordinator with a few (Sun et al., BMVC). Torch-free.

Devices train their encoders by temporal contrast between modalities, (1) and (2). The coordinator applies
every update to its labelled windows, weights devices by the similarity of their features (3), trains the head
on those windows, and fine-tunes at the end if configured. Where the paper leaves a choice:

- A window's two segments lie at the same times in all modalities, whatever their rates; tIoU is that of the
  grid points that were used. Segments of different windows have tIoU 0.
- (1) is the mean over segments, of both directions, and of all pairs of modalities that a window has, each
  pair by its segments. A window with one modality is paired with itself.
- If a context is stored with a window, a window's length is drawn from it and the segments are cut from that:
  segments overlap as they do in a window.
- Only samples have segments: streams and sound. A frame (image, vector, text) has no time within it.
- A missing modality is a feature of zeros, while the head is trained and at inference.
- Each encoder's devices are compared by their own feature of that modality: a device without the modality
  does not count in its encoder. The formula (3) is not in the available text: ``rule`` names the readings.
- The fold moves each value by the weighted mean of the devices' deltas; BatchNorm statistics are sent and
  averaged like parameters.
"""

from typing import Annotated, Literal

from pydantic import Field

from models.packages import ENCODERS
from models.spec import MethodSpec
from models.training.training_choices import Housings, housings_trouble
from protocol.base import Frozen, Share
from protocol.tasks.task import Task

Rate = Annotated[float, Field(gt=0, le=10)]
Decay = Annotated[float, Field(ge=0, lt=1)]
Degrees = Annotated[float, Field(ge=0, le=180)]
Relative = Annotated[float, Field(ge=0, lt=1)]
Batch = Annotated[int, Field(ge=2, le=65536)]


class TactflConfig(Frozen):
    """Options of the task's ``config`` table."""

    segment_share: Annotated[float, Field(ge=0.125, le=1)] = 0.8
    """w: a segment's length, as a share of a window's. Below an eighth an encoder that halves the time axis
    would have nothing left."""
    segments: Literal["random", "ends"] = "random"
    """Position of a window's two segments: random at each step, or the first and the last w of it (the
    paper's figure). With ``ends`` and w up to one half they do not overlap."""
    use_context: bool = True
    """Segments are cut from the context stored with the window (``window.context_s``), if there is one."""
    temperature: Annotated[float, Field(gt=0, le=100)] = 0.1
    """tau of (1); the available text gives no value."""
    self_pairs: Literal["skip_same", "literal"] = "skip_same"
    """A window with one modality, paired with itself: ``literal``, a segment is also its own counterpart,
    which has no effect (its cosine is 1 whatever the encoder); ``skip_same``, it is not."""
    self_weight: Annotated[float, Field(ge=0, le=100)] = 0.0
    """Not in the paper: if a window has several modalities, each is paired with itself, too, and such a pair
    weighs this many times one of two modalities. 0 is the paper's; the gain, with augmentation, is in
    docs/methods/tactfl.md."""
    rotate_deg: Degrees = 0.0
    """Augmentation, not in the paper: each segment is rotated about a random axis by up to this angle, its
    streams of three channels together (sensors in one housing)."""
    housings: Housings = ()
    """With ``rotate_deg`` and ``finetune_rotate_deg``: groups of modalities in one housing. Groups rotate
    independently, and modalities in none do not. Empty: one group of all."""
    gain: Relative = 0.0
    """Augmentation, not in the paper: each segment and modality is multiplied by a factor from ``1 - gain``
    to ``1 + gain``."""
    jitter: Annotated[float, Field(ge=0, le=10)] = 0.0
    """Augmentation, not in the paper: Gaussian noise on each value, with a standard deviation of this many
    times the modality's ``scale``."""
    optimizer: Literal["adam", "sgd"] = "adam"
    """Of the device."""
    keep_moments: bool = True
    """Adam's running means stay on the device from round to round (twice the encoders' size on its disk).
    False: they begin anew in each round."""
    lr: Rate = 0.001
    """The device's step in round 1; later ``max(lr_min, lr * lr_decay ** (round - 1))``."""
    lr_decay: Annotated[float, Field(gt=0, le=1)] = 1.0
    lr_min: Rate = 1e-5
    weight_decay: Decay = 0.0
    batch: Batch = 64
    """Windows a step; each is two segments. The paper's is 16."""
    epochs: Annotated[int, Field(ge=1, le=1000)] = 1
    feature_scale: Annotated[float, Field(gt=0, le=1000)] = 8.0
    normalise: bool = True
    """The head gets features of the length ``feature_scale``."""
    remeasure_norms: bool = True
    """After training, BatchNorm's statistics are measured again on the round's whole windows: training uses
    segments only."""
    weighting: Literal["similarity", "equal", "windows"] = "similarity"
    """Weights of devices in the fold: the paper's (3); one vote each; by their reported windows (none counts
    for more than four times the median)."""
    rule: Literal["softmax", "clamp", "literal"] = "softmax"
    """Weights from similarities: ``softmax``, in proportion to ``exp(sharpness * mean similarity to the
    others)``; ``clamp``, in proportion to that mean where it is positive; ``literal``, the row sums of S
    without its diagonal over their total, which gives equal weights if that is not positive."""
    sharpness: Annotated[float, Field(ge=0, le=1000)] = 5.0
    summary: Literal["mean", "classes"] = "mean"
    """r_k, a device's features of the labelled windows: the mean feature (the paper's), or the mean features
    of the classes, concatenated."""
    centre: bool = False
    """Not in the paper: the devices' median view is subtracted before the cosine. Models with the same start
    of the round give similarities near 1, and this separates them."""
    floor: Share = 0.1
    """Against exclusion, not in the paper: no device's weight is below this share of an equal one."""
    head_epochs: Annotated[int, Field(ge=1, le=10_000)] = 20
    head_lr: Rate = 0.005
    head_batch: Batch = 64
    head_every: Annotated[int, Field(ge=1, le=100_000)] = 1
    """The head is trained in every round that is a multiple of this, and in the last: no encoder depends on
    it."""
    head_dropout: Relative = 0.2
    """While the head is trained, each labelled window loses each modality with this probability, never the
    last one."""
    finetune_epochs: Annotated[int, Field(ge=0, le=10_000)] = 0
    """Not in the paper: at the end of the last round, encoders and head are trained together on the labelled
    windows."""
    finetune_head: Literal["fresh", "warm"] = "fresh"
    """The head's start for that: fresh values, or those that fit the frozen encoders, which keep the encoders
    from moving far (docs/methods/tactfl.md)."""
    finetune_lr: Rate = 0.001
    finetune_batch: Batch = 64
    finetune_rotate_deg: Degrees = 0.0
    finetune_gain: Relative = 0.0
    finetune_dropout: Relative = 0.0
    finetune_weight_decay: Decay = 0.0
    max_delta: Annotated[float, Field(gt=0, le=1000)] = 100.0
    """The coordinator refuses an update in which any model value moved further."""


def _not_secure(config: TactflConfig, _task: Task) -> str:
    if config.weighting == "similarity":
        seen = "evaluates each update on the coordinator's labelled windows, and nobody sees one"
    elif config.weighting == "windows":
        seen = "weighs each update by its windows, and nobody sees their number"
    else:
        return ""
    return f"config.weighting = {config.weighting!r} {seen}; write 'equal'"


def _not_private(config: TactflConfig, _task: Task) -> str:
    if config.weighting == "equal":
        return ""
    return f"config.weighting = {config.weighting!r} lets one update decide about others; write 'equal'"


METHOD = MethodSpec(
    name="tactfl",
    class_rows=lambda name: "label" if name.startswith("head/fc2.") else "",
    modality_columns=("head/fc1.weight",),
    misfit=lambda config, task: housings_trouble(task, config.housings),
    title="TACTFL: temporal contrast on unlabelled devices, similarity-guided aggregation",
    paper="Sun et al., TACTFL: Temporal Contrastive Training for Multi-modal Federated Learning with "
    "Similarity-guided Model Aggregation, BMVC",
    config=TactflConfig,
    summed=True,
    not_secure=_not_secure,
    not_private=_not_private,
    needs_labels=False,
    guided=True,
    modality_kinds=("stream", "sound"),  # its segments are stretches of time
    optimised=("encoder",),
    own_parts=(ENCODERS,),  # the head is standardised and trained layer by layer
    tunable=("head_", "finetune_", "weighting", "rule", "sharpness", "centre", "floor"),
    symbols={
        "K": "devices",
        "D_s": "task.labelled",
        "w": "segment_share",
        "tau": "temperature",
        "f_A": "encoder/<modality>",
        "h": "head",
        "P": "target_SS",
        "r_k": "a device's view",
        "S": "Weighing.similarity",
        "w_k": "Weighing.weights",
    },
)
