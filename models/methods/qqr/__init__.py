"""QQR: class prototypes against missing and noisy modalities, learned online (Wang et al.). Torch-free.

OGPC builds global prototypes per (modality, class), PNR imputes missing modalities by them, PLR pulls the
features of a noisy modality towards them. Where the paper leaves a choice:

- (13) divides by the number of contributing windows of that class; (15) is a mean over the devices that hold
  the class; t of (16) counts, per (modality, class), the rounds in which it was seen.
- q is one per window and modality, from the stream's quality indicator.
- One update carries model and prototypes: training uses the global prototypes of earlier rounds, and those
  sent come from the encoders just trained, with BatchNorm's running statistics.
- (5) is a plain mean, so every weight is 1. BatchNorm statistics are sent and averaged like parameters. A
  device without a modality sends no encoder of it, and the whole head, trained on completed features.
"""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from models.packages import ENCODERS, NETWORKS
from models.spec import MethodSpec
from models.training.supervised_options import SupervisedConfig, misfit_of
from protocol.base import Share
from protocol.frames.tensors import Codec
from protocol.tasks.links import Downlink, Uplink
from protocol.tasks.task import Task

Impute = Literal["pnr", "pnr_posterior", "mean_feature", "zero_input", "zero_feature", "complete_only"]
Personal = Literal["none", "head", "prototypes", "both"]
Noise = Annotated[float, Field(ge=0, le=1000)]


class QqrConfig(SupervisedConfig):
    """Options of the task's ``config`` table, beside those that methods share.

    ``normalise`` serves prototypes, too: the paper asks for comparable magnitudes. ``modality_dropout`` is
    not in the paper; with ``zero_feature`` it is FedAvg with modality dropout.
    """

    impute: Impute = "pnr"
    """The value of a missing modality in training: ``pnr``, the paper's literal rule, the prototype of the
    sample's true class (18, 19); ``pnr_posterior``, the prototypes weighted by the posterior of the present
    modalities, as both do at inference, which shows the head no label; ``mean_feature``, the plain mean of
    the modality's prototypes for every class, at inference too (mean imputation); an input of zeros; a
    feature of zeros; or nothing, and only samples with all modalities train. The last three are the paper's
    baselines."""
    pce_on_incomplete: bool = False
    """Not in the paper: (22) pulls the present modalities towards their prototypes also if another is
    missing, whatever the quality. The head can read the class from an imputed prototype; this makes the
    encoders learn from such samples too. ``False`` is literal; the gain is in docs/methods/qqr.md."""
    missing_prototype: Literal["wait", "zero_feature"] = "zero_feature"
    """PNR, a class (by posterior: every class) without prototype: a feature of zeros, or the sample waits for
    a later round (it is counted; and waits for ever if no device has the modality)."""
    quality: Literal["plr", "none"] = "plr"
    """``plr``: windows of low quality give no prototypes (14) and get the loss of (22). ``none``: quality is
    not read."""
    quality_threshold: Share = 0.5
    """q of a (window, modality) is 1 from this quality on, else 0. The paper has one q for a modality and
    round; the noise of a stream may change within a round, and if it does not, both are the same."""
    beta: Annotated[float, Field(ge=0, le=100)] = 0.5
    """Weight of PLR's term in (22)."""
    forgetting: Literal["cumulative", "exponential"] = "cumulative"
    """The weights of rounds in a global prototype: the paper's equal ones (16), or exponentially fading ones.
    """
    forgetting_rate: Annotated[float, Field(gt=0, le=1)] = 0.5
    """Exponential forgetting: the newest round's share."""
    prototype_bits: Literal[2, 3, 4, 8, 32] = 4
    """The uniform quantizer of prototypes; 32 sends float32. 3 has 8 levels but travels in 4 bits an
    element."""
    min_count: Annotated[int, Field(ge=1, le=1_000_000)] = 1
    """Windows of a (modality, class), present and of good quality, that a prototype needs; with fewer the
    device sends none of it."""
    prototype_trim: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Robust prototypes: this share of a class's windows (rounded down), those furthest from the
    coordinate-wise median of the class's features, is left out of the mean (13). 0 is the paper's mean."""
    prototype_clip: Annotated[float, Field(ge=0, le=1e6)] = 0.0
    """Features longer than this are scaled down to it before the mean (13); 0 clips nothing. Not for
    ``normalise``, which gives all one length."""
    upload: Literal["model+prototypes", "prototypes"] = "model+prototypes"
    """``prototypes``: nothing is trained, features come from the global encoders, and only prototypes are
    sent."""
    model_every: Annotated[int, Field(ge=1, le=100_000)] = 1
    """Model deltas are sent in every round that is a multiple of this, and in the task's last one. In the
    other rounds a device trains on from its own weights and sends only its prototypes. 1 is the paper."""
    novel_classes: bool = True
    """At inference: a class that has a prototype and was never trained (``classes/trained``) is recognised by
    its prototype alone, beside the trained head."""
    personal: Personal = "none"
    """What a device stores for itself after training: the head, its prototypes, or both. Its own predictions
    use them, blended with the global ones; its updates, and the start of its next round, do not."""
    personal_share: Share = 0.5
    """Weight of a device's own head and prototypes in that blend."""
    dp_noise: Noise = 0.0
    """Differential privacy of prototypes (``privacy.py``): Gaussian noise on each class mean, with a standard
    deviation of this many times the mean's sensitivity. 0 is off. Only if nothing but prototypes is sent."""
    dp_delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    """delta of the reported (epsilon, delta)."""
    dp_epsilon_max: Annotated[float, Field(gt=0, le=1e9)] | None = None
    """A window gives no more prototypes once another would take its epsilon beyond this; None sets no limit.
    """
    clean_norms: bool = True
    """Not in the paper, which has no BatchNorm: windows of low quality are left out of that measurement, and
    if hardly any other is left the statistics of the base stay. Otherwise noise in a round would shift the
    features of every window at inference (docs/methods/qqr.md)."""

    @model_validator(mode="after")
    def _private_means(self) -> Self:
        """Noise protects only the values it is added to, and only if one window's share is bounded."""
        if self.prototype_clip and self.normalise:
            raise ValueError(
                "prototype_clip: with normalise = true every feature has the length feature_scale"
            )
        if not self.dp_noise:
            if self.dp_epsilon_max is not None:
                raise ValueError("dp_epsilon_max needs dp_noise above 0: without noise epsilon has no bound")
            return self
        if self.upload != "prototypes":
            raise ValueError(
                "dp_noise protects prototypes alone, and the model's deltas would tell of the same windows: "
                'set upload = "prototypes", or dp_noise = 0'
            )
        if not (self.normalise or self.prototype_clip):
            raise ValueError(
                "dp_noise needs features of bounded length: set normalise = true or prototype_clip"
            )
        if self.prototype_trim:
            raise ValueError("dp_noise is made for a plain mean: set prototype_trim = 0")
        return self


_PERSONAL = {
    "none": (),
    "head": ("head",),
    "prototypes": ("prototypes",),
    "both": ("head", "prototypes"),
}


def _misfit(config: QqrConfig, task: Task) -> str:
    return misfit_of(config, task, {"impute": config.impute == "pnr_posterior" and config.impute})


METHOD = MethodSpec(
    name="qqr",
    title="QQR: quantity and quality rebalancing by prototypes",
    paper="Wang et al., Mitigating Modality Quantity and Quality Imbalance in Multimodal Online Federated "
    "Learning",
    config=QqrConfig,
    summed=True,
    needs_labels=True,
    prototype_role=True,
    augments=True,
    in_groups=True,
    trains=lambda config: config.upload != "prototypes",
    personal=lambda config: _PERSONAL[config.personal],
    noise=lambda config: config.dp_noise,
    codecs={"rounds": Codec.FLOAT32},  # counts
    rounded=("encoder", "head", "prototypes"),
    own_parts=(ENCODERS, NETWORKS),
    linear=True,
    misfit=_misfit,
    class_rows=lambda name: "label" if name.startswith(("prototypes/", "classes/", "head/fc2.")) else "",
    modality_columns=("head/fc1.weight",),
    fine=("prototypes",),  # a class each row, and in the first rounds no small change
    uplink=Uplink(codec="steps", coarseness=2.5),
    downlink=Downlink(coarseness=2.0),
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
