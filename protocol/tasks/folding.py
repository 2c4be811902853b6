"""Options of a task: how a round's updates become the next version."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from protocol.base import Wire


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
