"""Options of a task: how a round's updates become the next version."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from protocol.base import Wire
from protocol.tasks.links import MAX_LEVEL


class Aggregator(Wire):
    """The server optimizer on a round's mean update (Reddi et al., Adaptive Federated Optimization).

    ``fedavg`` adds it to the model. The others use it as a gradient (algorithm 2). Moments are blobs of the
    version that no device fetches.
    """

    kind: Literal["fedavg", "fedadagrad", "fedadam", "fedyogi"] = "fedavg"
    lr: Annotated[float, Field(gt=0, le=100)] = 0.01
    """Server's step size; not of ``fedavg``."""
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.99
    tau: Annotated[float, Field(gt=0, le=1)] = 1e-3
    """Adaptivity: added to the root of the second moment."""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """FedAvgM; with ``fedavg`` alone."""

    @model_validator(mode="after")
    def _momentum_is_of_fedavg(self) -> Self:
        if self.momentum and self.kind != "fedavg":
            raise ValueError(f'momentum is an option of kind = "fedavg"; {self.kind} has beta1')
        return self


class Robust(Wire):
    """Bounds on the influence of one device's updates (docs/robust-folds.md)."""

    outlier_factor: Annotated[float, Field(ge=0, le=1e6)] = 12.0
    """An update is not folded if a part of the model moves further than this multiple of the round's median;
    0 folds all."""
    fold: Literal["mean", "clip", "trimmed_mean", "median"] = "mean"
    """Fold of model deltas. All but ``mean`` give every update one vote, whatever its weight, and need disk
    for a round's updates in float32."""
    clip_factor: Annotated[float, Field(gt=0, le=1e6)] = 1.0
    """``clip``: each part of an update is scaled down to this multiple of the round's median norm."""
    trim: Annotated[float, Field(ge=0, lt=0.5)] = 0.2
    """``trimmed_mean``: share of the updates (rounded up) that is trimmed at both ends, by value."""
    prototypes: Literal["mean", "geometric_median"] = "mean"
    """Fold of class prototypes, if the method has them."""


class SecureAggregation(Wire):
    """Secure aggregation (docs/secure-aggregation.md): the table's presence makes every round secure."""

    ring_bits: Literal[16, 24, 32, 48, 64] = 32
    """Bits of a number on the wire; the sum over all devices of a round must fit."""
    fraction_bits: Annotated[int, Field(ge=0, le=23)] = 16
    """Devices round values to multiples of ``2 ** -fraction_bits``; the error carry keeps the rest."""
    bound: Annotated[float, Field(gt=0, le=1024)] = 4.0
    """Largest magnitude of a value. Deltas beyond it are cut, and the error carry keeps the rest."""
    weights: Literal["equal", "samples"] = "equal"
    """What an update weighs: 1, or what the method gives it by its samples, up to ``max_weight``."""
    max_weight: Annotated[int, Field(ge=1, le=1 << 16)] = 64
    """Cap of a weight, for ``weights = "samples"``."""
    min_devices: Annotated[int, Field(ge=3, le=1 << 20)] = 5
    """A sum over fewer devices is not made: the round fails closed. Devices check it, too."""
    max_lost: Annotated[float, Field(ge=0, le=0.4)] = 0.3
    """Share of the devices that may be lost between their keys and the end of the round. More cost more
    neighbours for each device."""
    identities: Literal["required", "none"] = "required"
    """``none``: a fleet whose devices have no certificates. Their keys are not signed, so the coordinator
    could replace them; each device's own configuration decides whether it takes part."""

    @property
    def level(self) -> int:
        """The largest magnitude of a rounded value, in steps."""
        return int(self.bound * (1 << self.fraction_bits))

    @property
    def heaviest(self) -> int:
        """The largest weight of an update."""
        return self.max_weight if self.weights == "samples" else 1

    @property
    def capacity(self) -> int:
        """How many devices' numbers can be added without leaving the ring."""
        return ((1 << (self.ring_bits - 1)) - 1) // (max(1, self.level) * self.heaviest)

    def room_trouble(self, devices: int) -> str:
        """Why so many devices do not fit the ring, in words; empty if they do."""
        if devices <= self.capacity:
            return ""
        return (
            f"a sum over {devices} devices does not fit ring_bits = {self.ring_bits}: with bound = "
            f"{self.bound:g}, fraction_bits = {self.fraction_bits} and weights up to {self.heaviest} there "
            f"is room for {self.capacity}; raise ring_bits, or lower bound or fraction_bits"
        )

    @model_validator(mode="after")
    def _numbers_fit(self) -> Self:
        if not 1 <= self.level <= MAX_LEVEL:
            raise ValueError(
                f"bound = {self.bound:g} with fraction_bits = {self.fraction_bits} is {self.level} steps; "
                f"1 to {MAX_LEVEL} are exact in float32"
            )
        if trouble := self.room_trouble(self.min_devices):
            raise ValueError(trouble)
        return self


class AdaptiveClip(Wire):
    """``[privacy.adaptive_clip]``: the clip follows a quantile of the norms (Andrew et al. 2021).

    Each update says by one bit whether it needed no clip. The coordinator sums the bits with noise, and the
    clip of the next round is multiplied by ``exp(-lr * (share - quantile))``.
    """

    quantile: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """Share of the updates that shall be within the clip."""
    lr: Annotated[float, Field(gt=0, le=2)] = 0.2
    """How fast the clip follows."""
    count_noise: Annotated[float, Field(gt=0, le=1e6)]
    """Standard deviation of the noise in the number of devices within the clip; over half of
    ``noise_multiplier``, whose noise pays for it. A twentieth of the devices of a round is usual."""


class LocalPrivacy(Wire):
    """Devices train with DP-SGD (Abadi et al. 2016): the coordinator learns little of any one window.

    Each step takes every window with the same probability, ``config.batch`` of them on average, scales the
    gradient of each to ``clip`` at most, and adds Gaussian noise to their sum.
    """

    clip: Annotated[float, Field(gt=0, le=1e6)]
    """Maximum L2 norm of a window's gradient, over all tensors that the device trains."""
    noise_multiplier: Annotated[float, Field(ge=0.1, le=1e4)]
    """Standard deviation of the noise in each value of a step's sum of gradients, in clips."""
    delta: Annotated[float, Field(gt=0, lt=0.1)] = 1e-5
    """Probability that epsilon does not hold; well below one by the number of a device's windows."""
    max_epsilon: Annotated[float, Field(gt=0, le=1e6)] | None = None
    """A device takes part no more when its account, over all its tasks, would exceed it for a moment of its
    streams. None: the device's own limit alone counts."""


class Privacy(Wire):
    """What devices and coordinator do so that versions tell little of any one device.

    Each device scales its whole update to ``clip`` at most; the coordinator adds discrete Gaussian noise to
    the sum. All devices weigh the same. With ``[secure_aggregation]`` the devices add the noise instead, each
    its share.
    """

    clip: Annotated[float, Field(gt=0, le=1e6)]
    """Maximum L2 norm of a device's whole update, over all its tensors, as the coordinator decodes it."""
    noise_multiplier: Annotated[float, Field(gt=0, le=1e4)]
    """Standard deviation of the noise in each value of the sum, in multiples of ``clip``; with
    ``[secure_aggregation]`` of the smallest sum that is opened."""
    delta: Annotated[float, Field(gt=0, lt=0.1)] = 1e-5
    """Probability that epsilon does not hold; well below one by the number of devices."""
    max_epsilon: Annotated[float, Field(gt=0, le=1e6)] | None = None
    """The rounds end before a version would exceed it. None: ``rounds.count`` is the only limit."""
    sampling: Literal["none", "poisson"] = "none"
    """``poisson``: each device takes part in a round with probability ``rate``, independently of all others:
    the random choice makes epsilon smaller. ``none``: no such claim."""
    rate: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Of ``poisson``."""
    devices: Annotated[int, Field(ge=1, le=100_000_000)] | None = None
    """Of ``poisson``: about how many devices the fleet has. The sum is divided by ``rate`` times this
    number, and not by how many took part, which would tell of a device."""
    adaptive_clip: Annotated[AdaptiveClip | None, Field(exclude_if=lambda one: one is None)] = None
    """``clip`` is then that of round 1."""
    unit: Literal["device"] = "device"
    """What is protected: all that one device contributes to the task."""

    @model_validator(mode="after")
    def _poisson_has_its_keys(self) -> Self:
        poisson = self.sampling == "poisson"
        for key in ("rate", "devices"):
            if poisson and getattr(self, key) is None:
                raise ValueError(f'{key}: sampling = "poisson" needs it')
            if not poisson and getattr(self, key) is not None:
                raise ValueError(f'{key}: only with sampling = "poisson"; leave it out')
        return self

    @model_validator(mode="after")
    def _the_count_has_its_noise(self) -> Self:
        adaptive = self.adaptive_clip
        if adaptive is not None and 2 * adaptive.count_noise <= self.noise_multiplier:
            raise ValueError(
                f"adaptive_clip.count_noise: {adaptive.count_noise:g} must be over half of noise_multiplier, "
                f"{self.noise_multiplier:g}: the noise of count and sum share one account"
            )
        return self

    @property
    def sum_multiplier(self) -> float:
        """The noise of the sum, so that it and the count together cost what ``noise_multiplier`` says."""
        if self.adaptive_clip is None:
            return self.noise_multiplier
        return float((self.noise_multiplier**-2 - (2 * self.adaptive_clip.count_noise) ** -2) ** -0.5)

    def divisor(self, folded: int) -> float:
        """What the sum of a round with ``folded`` updates is divided by."""
        if self.rate is None or self.devices is None:
            return float(max(1, folded))
        return self.rate * self.devices

    @property
    def sensitivity(self) -> int:
        """How far one device moves the sum, in multiples of ``clip``.

        With ``poisson`` it is added or removed; otherwise it is replaced by another, and their number is the
        same.
        """
        return 1 if self.sampling == "poisson" else 2
