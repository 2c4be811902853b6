"""How a round's updates become the next version: options of a task."""

from typing import Annotated, Literal

from pydantic import Field

from protocol.base import Wire


class Aggregator(Wire):
    """What the coordinator makes of a round's mean update (Reddi et al., Adaptive Federated Optimization).

    ``fedavg`` adds it to the model. ``fedadam`` and ``fedyogi`` take it for a gradient (algorithm 2 there);
    their moments are blobs of the version that no device fetches.
    """

    kind: Literal["fedavg", "fedadam", "fedyogi"] = "fedavg"
    lr: Annotated[float, Field(gt=0, le=100)] = 0.01
    """Step size of the server; ``fedavg`` reads neither this nor what follows."""
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.99
    tau: Annotated[float, Field(gt=0, le=1)] = 1e-3
    """Adaptivity: added to the root of the second moment."""


class Robust(Wire):
    """What the updates of one device may do to the model (docs/robust-folds.md)."""

    outlier_factor: Annotated[float, Field(ge=0, le=1e6)] = 12.0
    """An update in which some part of the model moves further than so many times the round's median is not
    folded; 0 folds all."""
    fold: Literal["mean", "clip", "trimmed_mean", "median"] = "mean"
    """How model deltas are put together. All but ``mean`` give every update one vote, whatever its weight,
    and need disk for a round's updates in float32."""
    clip_factor: Annotated[float, Field(gt=0, le=1e6)] = 1.0
    """``clip``: each part of an update is scaled down to so many times the round's median length."""
    trim: Annotated[float, Field(ge=0, lt=0.5)] = 0.2
    """``trimmed_mean``: of each value, this share of the updates (rounded up) is left out at both ends."""
    prototypes: Literal["mean", "geometric_median"] = "mean"
    """How class prototypes are put together, where the method has them."""
