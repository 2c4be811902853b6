"""The methods, their tuned options, and the streams: the table to change.

``lichen bench qqr --part tune`` runs every method over the same grid of learning rates, on seeds that no
table uses, and is evaluated on training people who train nothing.
"""

from collections.abc import Mapping
from functools import partial
from operator import attrgetter
from typing import Any, Final

from lichen_lab.benchmarks.studies.qqr.settings import QqrOutcome, QqrRun, QqrSetting, StreamConditions
from lichen_lab.benchmarks.study.part import Figure, PartResults, StudyLine
from lichen_lab.benchmarks.study.part import Part as StudyPart

ACCURACY: Final = "accuracy, %"
Results = PartResults[QqrRun, QqrOutcome]
Line = StudyLine[QqrRun, QqrOutcome]
Part = partial(StudyPart[QqrRun, QqrOutcome], figures=(Figure[QqrOutcome](ACCURACY, attrgetter("accuracy")),))
"""A part with the study's figure."""


def line(
    method: str,
    under: str,
    flow: StreamConditions,
    config: Mapping[str, Any],
    *probes: str,
    fleet: str = "uci-har",
    tuning: bool = False,
    **setting: Any,
) -> Line:
    """A line of a table: its title, its conditions in words, its windows, options and further settings."""
    run = QqrRun(fleet, setting=QqrSetting(config, **setting), conditions=flow, tuning=tuning, probes=probes)
    return Line(method, run, under)


Options = Mapping[str, Any]

FC: Final = "FC (nothing missing)"
PNR: Final = "PNR"
ZP_INPUT: Final = "ZP (zero input)"
ZP_FEATURE: Final = "ZP (zero feature)"
MEAN: Final = "mean imputation"
DROPOUT: Final = "FedAvg, modality dropout"
IS: Final = "IS (complete windows only)"

ALL_METHODS: Final[Options] = {"lr": 0.08, "lr_decay": 0.95, "lr_min": 0.001, "batch": 128, "epochs": 1}
"""The paper's."""
OURS: Final[Options] = {"impute": "pnr"}
QUANTITY: Final[Mapping[str, Options]] = {
    FC: OURS,
    PNR: OURS,
    ZP_INPUT: {"impute": "zero_input"},
    ZP_FEATURE: {"impute": "zero_feature"},
    MEAN: {"impute": "mean_feature"},
    DROPOUT: {"impute": "zero_feature", "modality_dropout": 0.3},
    IS: {"impute": "complete_only"},
}
"""Method -> options under quantity imbalance; they override :data:`ALL_METHODS`."""

BEST_RATES: Final[Mapping[str, float]] = {
    FC: 0.16,
    PNR: 0.08,
    ZP_INPUT: 0.16,
    ZP_FEATURE: 0.08,
    MEAN: 0.16,
    DROPOUT: 0.32,
    IS: 0.08,
}
"""Method -> best learning rate of the part ``tune``."""
LITERAL_RATE: Final = 0.32
"""Best learning rate of the part ``literal_tune``."""

PQ: Final = "PQ (no noise)"
PLR: Final = "PLR"
PLR_ALL_NORMS: Final = "PLR, noise in BatchNorm's statistics"
CLEAN_NORMS: Final = "clean BatchNorm statistics alone"
BQ: Final = "BQ (noise, nothing done)"
QUALITY: Final[Mapping[str, Options]] = {
    PQ: {"quality": "plr", "beta": 0.5},
    PLR: {"quality": "plr", "beta": 0.5},
    PLR_ALL_NORMS: {"quality": "plr", "beta": 0.5, "clean_norms": False},
    CLEAN_NORMS: {"quality": "plr", "beta": 0.0},
    BQ: {"quality": "none"},
}
"""Method -> options under quality imbalance; they override ``OURS``."""

NORMALISED: Final = "normalised"
LITERAL: Final = "the paper's literal rule"
RULES: Final[Mapping[str, Options]] = {
    NORMALISED: {"normalise": True},
    LITERAL: {
        "normalise": False,
        "pce_on_incomplete": False,
        "forgetting": "cumulative",
        "clean_norms": False,
    },
}
"""Rules that compare features with prototypes; the literal rule overrides a method's own options."""

CLEAN: Final = StreamConditions()
HALF: Final = StreamConditions(missing_share=0.9, affected_rounds=0.5)
EVERY: Final = StreamConditions(missing_share=0.9, affected_rounds=1.0)
SNR_DB: Final = (10.0, 5.0, 0.0, -5.0)


def noisy(snr_db: float) -> StreamConditions:
    """A stream with one noisy modality in half of the rounds."""
    return StreamConditions(noisy_rounds=0.5, snr_db=snr_db)


def quantity(method: str, rule: str = NORMALISED, **more: Any) -> dict[str, Any]:
    """All options of a method under quantity imbalance."""
    return {**ALL_METHODS, **QUANTITY[method], **RULES[rule], **_literal(method, rule), **more}


def quality(method: str, rule: str = NORMALISED, **more: Any) -> dict[str, Any]:
    """All options of a method under quality imbalance."""
    return {**ALL_METHODS, **OURS, **QUALITY[method], **RULES[rule], **_literal(PNR, rule), **more}


def _literal(method: str, rule: str) -> Options:
    """The literal rule fills a missing feature with the prototype of the true class."""
    pnr = QUANTITY[method].get("impute", "pnr").startswith("pnr")
    return {"impute": "pnr"} if rule == LITERAL and pnr else {}


GRID: Final = (0.08, 0.16, 0.32, 0.64)
"""Learning rates of the first round, tried with every method."""
TUNING_SEEDS: Final = (100, 101)
"""No table uses these."""
SEEDS: Final = 5
