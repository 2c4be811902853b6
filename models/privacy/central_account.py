"""What a task's ``[privacy]`` promises after some versions: figures and words, the same everywhere. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from models.privacy.accountant import epsilon_after, epsilon_of_seen
from models.privacy.shared_noise import SharedNoise
from protocol.tasks.folding import Privacy


@dataclass(frozen=True)
class CentralAccount:
    """The account of a version: what all versions up to it tell of one device.

    Attributes:
        releases: versions made with noise.
        epsilon: of the versions; with Poisson sampling for those who do not see who was asked.
        epsilon_of_seen: for those who do, such as the fleet's devices.
        delta: of both.
        noise_multiplier: standard deviation of the sum's noise, in multiples of the clip.
        sampling: ``none`` or ``poisson``.
        rate: of ``poisson``.
        clip: of the next round, if it adapts; None: that of the table.
        unit: what is protected.
        honest: of noise that devices add: how many of each sum must be honest for ``epsilon``, which then
            holds against the coordinator, too; None: the coordinator adds the noise.
        epsilon_of_half: epsilon if half of these devices tell the coordinator their noise, or add none.
    """

    releases: int
    epsilon: float
    epsilon_of_seen: float
    delta: float
    noise_multiplier: float
    sampling: str = "none"
    rate: float | None = None
    clip: float | None = None
    unit: str = "device"
    honest: int | None = None
    epsilon_of_half: float | None = None

    @classmethod
    def after(
        cls,
        privacy: Privacy,
        releases: int,
        clip: float | None = None,
        shared: SharedNoise | None = None,
    ) -> "CentralAccount":
        """The account after so many versions (:mod:`models.privacy.accountant`), and the next round's clip.

        ``shared``: the noise that devices add; None: the coordinator adds it.

        Raises:
            Misconfigured: the accountant's package is not installed.
        """
        return cls(
            releases,
            epsilon_after(privacy, releases, shared),
            epsilon_of_seen(privacy, releases, shared),
            privacy.delta,
            privacy.noise_multiplier,
            privacy.sampling,
            privacy.rate,
            clip,
            privacy.unit,
            None if shared is None else shared.devices,
            None if shared is None else shared.epsilon(releases, privacy.delta, shared.half),
        )

    @property
    def adjacency(self) -> str:
        """What two neighbouring fleets differ in."""
        return "add_or_remove_one" if self.rate is not None else "replace_one"

    @property
    def words(self) -> str:
        """One sentence for people."""
        rounds = f"after {self.releases} round{'' if self.releases == 1 else 's'}"
        bound = f"epsilon {_short(self.epsilon)} at delta {self.delta:g} for one {self.unit}"
        if self.honest is not None:
            half = 0.0 if self.epsilon_of_half is None else self.epsilon_of_half
            return (
                f"{rounds}: {bound} (replaced by another); {self.unit}s add the noise: it holds against the "
                f"coordinator as well, as long as {self.honest} {self.unit}s of each sum are honest; epsilon "
                f"{_short(half)} if half of these are not"
            )
        if self.rate is None:
            return f"{rounds}: {bound} (replaced by another)"
        return (
            f"{rounds}: {bound} (added or removed) if {self.unit}s are selected at random as announced and "
            "who was "
            f"asked stays unknown; epsilon {_short(self.epsilon_of_seen)} for those who see the offers"
        )

    def as_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "releases": self.releases,
            "epsilon": self.epsilon,
            "epsilon_of_seen": self.epsilon_of_seen,
            "delta": self.delta,
            "noise_multiplier": self.noise_multiplier,
            "sampling": self.sampling,
            "rate": self.rate,
            **({} if self.clip is None else {"clip": self.clip}),
            "unit": self.unit,
            "noise_by": "coordinator" if self.honest is None else "devices",
            **({} if self.honest is None else {"honest": self.honest}),
            **({} if self.epsilon_of_half is None else {"epsilon_of_half": self.epsilon_of_half}),
            "adjacency": self.adjacency,
            "words": self.words,
        }

    @classmethod
    def of_json(cls, content: Mapping[str, Any]) -> "CentralAccount":
        """The inverse of :meth:`as_json`."""
        derived = {"adjacency", "words", "noise_by"}
        return cls(**{key: value for key, value in content.items() if key not in derived})


def _short(epsilon: float) -> str:
    return f"{epsilon:.3g}" if epsilon < 1000 else f"{epsilon:.0f}"  # noqa: PLR2004 - no exponent for people
