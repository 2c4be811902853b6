"""QQR: class prototypes against missing and noisy modalities, learned online (Wang et al.). Torch-free.

OGPC builds global prototypes per (modality, class), PNR puts them where a modality is missing, PLR pulls the
features of a noisy modality towards them. Where the paper leaves a choice:

- (13) divides by the number of contributing windows of that class; (15) is a mean over the devices that hold
  the class; t of (16) counts, per (modality, class), the rounds in which it was seen.
- q is one per window and modality, from the stream's quality indicator.
- One update carries model and prototypes: training uses the global prototypes of earlier rounds, and those
  sent come from the encoders just trained, with BatchNorm's running statistics.
- (5) is a plain mean, so every weight is 1. BatchNorm statistics travel and are averaged like parameters. A
  device without a modality sends no encoder of it, and the whole head, trained on completed features.
"""

from typing import Annotated, Literal

from pydantic import Field

from models.contract import MethodSpec
from protocol.base import Frozen, Share

Rate = Annotated[float, Field(gt=0, le=10)]
Impute = Literal["pnr", "pnr_posterior", "zero_input", "zero_feature", "complete_only"]


class QqrConfig(Frozen):
    """Options of the task's ``config`` table."""

    impute: Impute = "pnr"
    """What stands for a missing modality while training: ``pnr``, the paper's literal rule, the prototype of
    the sample's true class (18, 19); ``pnr_posterior``, the prototypes weighted by the posterior of the
    modalities that are there, which is what both do at inference and shows the head no label; an input of
    zeros; a feature of zeros; or nothing, and only samples with all modalities train. The last three are the
    paper's baselines."""
    pce_on_incomplete: bool = False
    """Not in the paper: (22) pulls the modalities that are there towards their prototypes also where another
    is missing, whatever the quality. The head can read the class from an imputed prototype; this makes the
    encoders learn from such samples too. ``False`` is literal; what it gains is in docs/methods/qqr.md."""
    missing_prototype: Literal["wait", "zero_feature"] = "zero_feature"
    """PNR, a class (by posterior: every class) without prototype: a feature of zeros, or the sample waits for
    a later round (it is counted; and waits for ever where no device has the modality)."""
    quality: Literal["plr", "none"] = "plr"
    """``plr``: windows of low quality make no prototypes (14) and get the loss of (22). ``none``: quality is
    not read."""
    quality_threshold: Share = 0.5
    """q of a (window, modality) is 1 from this quality on, else 0. The paper has one q for a modality and
    round; a stream's noise comes and goes within one, and where it does not, both are the same."""
    beta: Annotated[float, Field(ge=0, le=100)] = 0.5
    """Weight of PLR's term in (22)."""
    normalise: bool = True
    """Features and prototypes have the length ``feature_scale`` (the paper asks for comparable
    magnitudes)."""
    feature_scale: Rate | Annotated[float, Field(gt=10, le=1000)] = 8.0
    forgetting: Literal["cumulative", "exponential"] = "cumulative"
    """How rounds enter a global prototype: the paper's mean of all (16), or with exponentially fading
    weights."""
    forgetting_rate: Annotated[float, Field(gt=0, le=1)] = 0.5
    """Exponential forgetting: the newest round's share."""
    prototype_bits: Literal[2, 3, 4, 8, 32] = 4
    """The uniform quantizer of prototypes; 32 sends float32. 3 has 8 levels but travels in 4 bits an
    element."""
    upload: Literal["model+prototypes", "prototypes"] = "model+prototypes"
    """``prototypes``: nothing is trained, features come from the global encoders, and only prototypes
    travel."""
    lr: Rate = 0.08
    """SGD's step in round 1; later ``max(lr_min, lr * lr_decay ** (round - 1))``."""
    lr_decay: Annotated[float, Field(gt=0, le=1)] = 0.95
    lr_min: Rate = 0.001
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    weight_decay: Annotated[float, Field(ge=0, lt=1)] = 0.0
    batch: Annotated[int, Field(ge=2, le=65536)] = 128
    epochs: Annotated[int, Field(ge=1, le=1000)] = 1
    remeasure_norms: bool = True
    """After training, BatchNorm's statistics are measured anew on the round's windows (a forward pass)."""
    rotate_deg: Annotated[float, Field(ge=0, le=180)] = 0.0
    """Augmentation: each training window is turned about a random axis by up to this angle, its three-channel
    modalities together (sensors in one housing). 0 is off."""
    gain: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Augmentation: each training window and modality is multiplied by a factor from ``1 - gain`` to ``1 +
    gain``."""
    max_delta: Annotated[float, Field(gt=0, le=1000)] = 100.0
    """The coordinator refuses an update in which any model value moved further."""


METHOD = MethodSpec(
    name="qqr",
    title="QQR: quantity and quality rebalancing by prototypes",
    paper="Wang et al., Mitigating Modality Quantity and Quality Imbalance in Multimodal Online Federated "
    "Learning",
    config=QqrConfig,
    needs_labels=True,
    may_miss_modality=True,
    symbols={
        "K": "devices",
        "C": "classes (task.labels)",
        "theta^m": "encoder/<modality>",
        "theta^0": "head",
        "z_m": "feature z_BD",
        "v_{k,c}^{t,m}": "prototypes/<modality>/values in an update",
        "vbar_c^{t,m}": "prototypes/<modality>/values in the global state",
        "p_{k,n}^{t,m}": "present_BM",
        "q_k^{t,m}": "quality_BM >= quality_threshold",
        "beta": "beta",
        "b": "prototype_bits",
        "lambda_p": "missing_share",
        "lambda_r": "affected_rounds",
        "delta_r": "noisy_rounds",
    },
)
