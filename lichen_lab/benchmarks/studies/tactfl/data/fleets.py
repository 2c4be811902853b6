"""The fleets of the study by name. A builder is seeded and takes seconds."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final, Protocol

from lichen_lab.benchmarks.studies.tactfl.data import dsads
from lichen_lab.benchmarks.studies.tactfl.data.hapt import build as hapt
from lichen_lab.benchmarks.studies.tactfl.data.uci_har import build as uci_har
from lichen_lab.benchmarks.studies.tactfl.settings import DealConditions, UnlabelledFleet
from protocol.errors import Misconfigured


class Builder(Protocol):
    """Makes a fleet of a seed; see :func:`lichen_lab.benchmarks.studies.tactfl.data.uci_har.build`."""

    def __call__(
        self, seed: int, conditions: DealConditions, *, tuning: bool = False, tests: int | None = None
    ) -> UnlabelledFleet:
        """The fleet."""


BUILDERS: Final[Mapping[str, Builder]] = {"uci-har": uci_har, "hapt": hapt, **dsads.BUILDERS}
SMALL_DEVICES: Final = 3
_SMALL_WINDOWS: Final = 24
_SMALL_TESTS: Final = 60
_SMALL_SHARE: Final = 0.1


def fleet(
    name: str, seed: int, conditions: DealConditions, *, tuning: bool = False, small: bool = False
) -> UnlabelledFleet:
    """The fleet of that name.

    Args:
        name: a key of :data:`BUILDERS`.
        seed: of all random draws.
        conditions: of the run.
        tuning: evaluate on held-out training people instead of test people.
        small: a few devices with a few windows: checks that the run works, not its figures.

    Raises:
        Misconfigured: there is none, or its data set is not here.
    """
    if name not in BUILDERS:
        raise Misconfigured(f"no fleet {name!r}; there are {', '.join(BUILDERS)}")
    if not small:
        return BUILDERS[name](seed, conditions, tuning=tuning)
    few = replace(
        conditions,
        devices=SMALL_DEVICES,
        windows=_SMALL_WINDOWS,
        alpha=100.0,
        labelled=_SMALL_SHARE * conditions.labelled,
    )
    return BUILDERS[name](seed, few, tuning=tuning, tests=_SMALL_TESTS)
