"""Options at the paper's rounds and batches, on seeds and people that no table uses; 50 rounds."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from lichen_lab.benchmarks.studies.tactfl import variants as v
from lichen_lab.benchmarks.studies.tactfl.parts import protocol
from lichen_lab.benchmarks.studies.tactfl.variants import Line, Part
from lichen_lab.benchmarks.study.part import condition_text, lines

_SHORT: Final[Mapping[str, Any]] = {**protocol.SETTING, "rounds": 50, "looks": (15, 30)}
RATES: Final = (0.0005, 0.001, 0.002)
SERVER_RATES: Final = (0.0003, 0.001, 0.003)
Change = Mapping[str, Any]
_OWN: Final[Mapping[str, Sequence[Change]]] = {
    v.FEDAVG: ({"confidence": 0.8}, {"confidence": 0.95}),
    v.FEDOPT: tuple({"server_lr": lr} for lr in (*SERVER_RATES, 0.01)),
    v.FEDPROX: ({"prox": 0.001}, {"prox": 0.01}, {"prox": 0.1}),
    v.MOON: ({"moon": 0.1}, {"moon": 1.0}, {"moon": 5.0}),
    v.FPL: ({"fpl": 0.1}, {"fpl": 1.0}),
    v.FEDMSPLIT: ({"temperature": 0.1}, {"temperature": 0.5}, {"temperature": 2.0}),
}
"""Baseline -> its own options, each with the default rate and confidence."""


def _tried(titles: Iterable[str], changes: Iterable[Change]) -> tuple[Line, ...]:
    """Each method with each change; ``setting`` names fields of it, the others are options."""
    unders = {}
    for change in changes:
        own = dict(change.get("setting", {}))
        options = {name: value for name, value in change.items() if name != "setting"}
        unders[condition_text({**own, **options})] = {"setting": {**_SHORT, **own}, **options}
    return lines(partial(protocol.at, tuning=True, conditions=protocol.CONDITIONS), titles, unders)


_BY_RATE: Final = tuple({"setting": {"lr": lr}} for lr in RATES)
PROTOCOL: Final = Part(
    name="protocol_tune",
    place=12,
    title="learning rates in batches of 16, on seeds and people of their own, 50 rounds",
    variants=_tried((v.TACTFL_PLAIN, v.TACTFL, v.BASELINES[v.AUTOENCODER]), _BY_RATE),
    rows=protocol.rows,
    by_default=False,
    seeds=v.TUNING_SEEDS[:1],
)
RIVALS: Final = Part(
    name="rivals_tune",
    place=13,
    title="options of the baselines by pseudo-labels, likewise; and server rates of TACTFL on FedAdam",
    variants=(
        *_tried((v.BASELINES[v.FEDAVG],), _BY_RATE),
        *(line for method, own in _OWN.items() for line in _tried((v.BASELINES[method],), own)),
        *_tried(
            (v.TACTFL_PLAIN,), ({"setting": {"aggregator": {**v.FEDADAM, "lr": lr}}} for lr in SERVER_RATES)
        ),
    ),
    rows=protocol.rows,
    by_default=False,
    seeds=v.TUNING_SEEDS[:1],
)
