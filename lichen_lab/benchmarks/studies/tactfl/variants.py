"""The methods, their tuned options, and the conditions: the table to change.

``lichen bench tactfl --part tune`` chose the options among :data:`TRIED` on seeds that no table uses,
evaluated on held-out training people.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from lichen_lab.benchmarks.studies.tactfl.data.dsads import PAIRS
from lichen_lab.benchmarks.studies.tactfl.settings import (
    HERE,
    TRAINED,
    TUNED,
    DealConditions,
    TactflOutcome,
    TactflRun,
    TactflSetting,
)
from lichen_lab.benchmarks.study.part import Figure, PartResults, StudyLine
from lichen_lab.benchmarks.study.part import Part as StudyPart

METHOD: Final = "tactfl"
"""The product's method; all others are baselines."""
RANDOM: Final = "random"
LABELLED: Final = "labelled"
AUTOENCODER: Final = "autoencoder"
FEDAVG: Final = "fedavg"
FEDOPT: Final = "fedopt"
FEDPROX: Final = "fedprox"
MOON: Final = "moon"
FPL: Final = "fpl"
FEDMSPLIT: Final = "fedmsplit"
BASELINES: Final[Mapping[str, str]] = {
    RANDOM: "random encoders",
    LABELLED: "labelled only",
    FEDAVG: "FedAvg",
    FEDOPT: "FedOpt",
    FEDPROX: "FedProx",
    MOON: "MOON",
    FPL: "FPL",
    FEDMSPLIT: "FedMSplit",
    AUTOENCODER: "autoencoder (FedIoT)",
}
"""Title of each."""
LABELLED_ONLY: Final = BASELINES[LABELLED]

TACTFL: Final = "TACTFL extended"
"""With our additions to the paper (:data:`OPTIONS`); the paper's method is :data:`TACTFL_PLAIN`."""
TACTFL_PLAIN: Final = "TACTFL (the paper's pieces)"
TACTFL_PLAIN_TUNED: Final = "TACTFL (the paper's pieces), fine-tuned"
TACTFL_TUNED: Final = "TACTFL extended, fine-tuned"
TACTFL_SHORTER_TUNED: Final = "TACTFL extended, segments of .7, fine-tuned"
TACTFL_LITERAL: Final = "TACTFL (the paper's pieces), Eq. 3 as written"
TACTFL_EQUAL: Final = "TACTFL (the paper's pieces), equal weights"
TACTFL_SIZES: Final = "TACTFL (the paper's pieces), weights by size of data"
TACTFL_SELF: Final = "TACTFL (the paper's pieces), each modality with itself, too"
TACTFL_SELF_TUNED: Final = "TACTFL (the paper's pieces), each modality with itself, too, fine-tuned"
TACTFL_SAME: Final = "TACTFL (the paper's pieces), a lone segment its own counterpart"
AUTOENCODER_TUNED: Final = "autoencoder, fine-tuned"
NO_SIMILARITY: Final = "TACTFL extended, equal weights"
NO_SIMILARITY_TUNED: Final = "TACTFL extended, equal weights, fine-tuned"
NO_CONTRAST_TUNED: Final = "random encoders, fine-tuned"


F1: Final = "F1, mean over classes, %"
ACCURACY: Final = "accuracy, %"
FIGURES: Final[tuple[Figure[TactflOutcome], ...]] = (
    Figure(F1, TactflOutcome.f1),
    Figure(ACCURACY, lambda outcome: outcome.scores[TRAINED][HERE]["accuracy"]),
)
Results = PartResults[TactflRun, TactflOutcome]
Line = StudyLine[TactflRun, TactflOutcome]
Part = partial(StudyPart[TactflRun, TactflOutcome], figures=FIGURES, worst=True)
"""A part with the study's figures."""

UCI_HAR: Final = "uci-har"
HAPT: Final = "hapt"
DSADS: Final = tuple(PAIRS)
SEEDS: Final = 3
TUNING_SEEDS: Final = (100, 101, 102)
"""No table uses these."""

BASE: Final[Mapping[str, TactflSetting]] = {
    name: TactflSetting(
        rounds=15,
        lr=0.002,
        batch=128,
        depth=4,
        tune_epochs=100,
        tune={"lr": 0.002, "rotate_deg": 20.0, "gain": 0.2, "dropout": 0.1},
    )
    for name in (UCI_HAR, HAPT, *DSADS)
}
"""The setting of all methods on a fleet."""
CONDITIONS: Final[Mapping[str, DealConditions]] = {
    UCI_HAR: DealConditions(devices=10, alpha=1.0, labelled=0.1, context_s=5.12),
    HAPT: DealConditions(devices=21, labelled=0.1, context_s=5.12, windows=120),
    **dict.fromkeys(DSADS, DealConditions(devices=6, labelled=1.0)),
}
"""Default conditions of a fleet."""
OPTIONS: Final[Mapping[str, Mapping[str, Any]]] = {
    METHOD: {
        "segment_share": 0.8,
        "temperature": 0.2,
        "self_weight": 3.0,
        "rotate_deg": 30.0,
        "gain": 0.3,
        "jitter": 0.05,
        "summary": "classes",
        "sharpness": 10.0,
    },
}
"""Method -> options on every fleet; they override its defaults."""
PLAIN: Final[Mapping[str, Any]] = {
    "temperature": 0.1,
    "self_weight": 0.0,
    "rotate_deg": 0.0,
    "gain": 0.0,
    "jitter": 0.0,
    "use_context": False,
    "summary": "mean",
    "sharpness": 5.0,
}
"""Options of the product's method without our additions to the paper."""
SETTING_OF: Final[Mapping[str, Mapping[str, Any]]] = {
    LABELLED: {"tune": {"lr": 0.002, "rotate_deg": 20.0, "gain": 0.2}},
}
"""Method -> fields of the setting that suit it better than :data:`BASE`."""
LSTM: Final[Mapping[str, Any]] = {"encoder": "lstm", "width": 32, "depth": 2}
"""The paper's encoder, for both modalities."""
FEDADAM: Final[Mapping[str, Any]] = {"kind": "fedadam", "lr": 0.003, "tau": 0.001}
FEDYOGI: Final[Mapping[str, Any]] = {**FEDADAM, "kind": "fedyogi"}


@dataclass(frozen=True)
class MethodSetup:
    """The run behind a line of a table.

    Attributes:
        method: the run's method.
        end: of the run.
        options: override those of :data:`OPTIONS`.
    """

    method: str
    end: str = TRAINED
    options: Mapping[str, Any] | None = None


_EQUAL: Final[Mapping[str, Any]] = {"weighting": "equal"}
LINES: Final[Mapping[str, MethodSetup]] = {
    BASELINES[RANDOM]: MethodSetup(RANDOM),
    LABELLED_ONLY: MethodSetup(LABELLED),
    BASELINES[FEDAVG]: MethodSetup(FEDAVG),
    BASELINES[FEDOPT]: MethodSetup(FEDOPT),
    BASELINES[FEDPROX]: MethodSetup(FEDPROX),
    BASELINES[MOON]: MethodSetup(MOON),
    BASELINES[AUTOENCODER]: MethodSetup(AUTOENCODER),
    AUTOENCODER_TUNED: MethodSetup(AUTOENCODER, TUNED),
    TACTFL: MethodSetup(METHOD),
    TACTFL_TUNED: MethodSetup(METHOD, TUNED),
    TACTFL_SHORTER_TUNED: MethodSetup(METHOD, TUNED, {"segment_share": 0.7}),
    TACTFL_PLAIN: MethodSetup(METHOD, TRAINED, PLAIN),
    TACTFL_PLAIN_TUNED: MethodSetup(METHOD, TUNED, PLAIN),
    NO_SIMILARITY: MethodSetup(METHOD, TRAINED, _EQUAL),
    NO_SIMILARITY_TUNED: MethodSetup(METHOD, TUNED, _EQUAL),
    NO_CONTRAST_TUNED: MethodSetup(RANDOM, TUNED),
}
"""Title -> the run that it shows, in the tables' order. Without contrast, encoders stay random: the first
line is TACTFL without contrast, and the last the same, fine-tuned."""
WEIGHTS: Final[Mapping[str, MethodSetup]] = {
    TACTFL_LITERAL: MethodSetup(METHOD, TRAINED, {**PLAIN, "rule": "literal", "floor": 0.0}),
    TACTFL_EQUAL: MethodSetup(METHOD, TRAINED, {**PLAIN, **_EQUAL}),
    TACTFL_SIZES: MethodSetup(METHOD, TRAINED, {**PLAIN, "weighting": "windows"}),
}
"""Title -> the paper's pieces with other weights of devices than :data:`TACTFL_PLAIN`."""
_SELF: Final[Mapping[str, Any]] = {**PLAIN, "self_weight": 1.0}
PAIRED: Final[Mapping[str, MethodSetup]] = {
    TACTFL_SELF: MethodSetup(METHOD, TRAINED, _SELF),
    TACTFL_SELF_TUNED: MethodSetup(METHOD, TUNED, _SELF),
    TACTFL_SAME: MethodSetup(METHOD, TRAINED, {**PLAIN, "self_pairs": "literal"}),
}
"""Title -> the paper's pieces with other pairs of segments than :data:`TACTFL_PLAIN`."""
RIVALS: Final[Mapping[str, MethodSetup]] = {BASELINES[name]: MethodSetup(name) for name in (FPL, FEDMSPLIT)}
"""Title -> a baseline that only the paper's protocol has, beside those of :data:`LINES`."""
SHORT: Final = (BASELINES[RANDOM], LABELLED_ONLY, NO_CONTRAST_TUNED, TACTFL, TACTFL_TUNED)
"""The lines of tables with many conditions."""
OURS: Final = (TACTFL, TACTFL_TUNED)
EQUAL: Final = (NO_SIMILARITY, NO_SIMILARITY_TUNED)
TUNED_AHEAD: Final = ((TACTFL_TUNED, LABELLED_ONLY), (TACTFL_TUNED, NO_CONTRAST_TUNED))
"""Differences that tables of :data:`SHORT` show."""
AHEAD: Final = (*TUNED_AHEAD, (TACTFL, BASELINES[RANDOM]))
SIMILARITY: Final = tuple(zip(OURS, EQUAL, strict=True))
OF_ALL: Final = frozenset({"labelled", "shift"})
"""Conditions that affect more than the devices."""
ALONE: Final = frozenset({RANDOM, LABELLED})
"""Methods without training on devices, which device conditions do not affect."""


def spec(
    fleet: str,
    method: str,
    *,
    conditions: Mapping[str, Any] | None = None,
    setting: Mapping[str, Any] | None = None,
    tuning: bool = False,
    seed: int = 0,
    **options: Any,
) -> TactflRun:
    """A method's run on a fleet with its tuned options, apart from those given here.

    Args:
        fleet: :data:`UCI_HAR`, :data:`HAPT` or one of :data:`DSADS`.
        method: a name of :mod:`lichen_lab.benchmarks.studies.tactfl.variants`.
        conditions: fields of :class:`lichen_lab.benchmarks.studies.tactfl.settings.DealConditions`.
        setting: fields of :class:`~lichen_lab.benchmarks.studies.tactfl.settings.TactflSetting`; not
            ``options``.
        tuning: evaluate on held-out training people.
        seed: of all random draws.
        options: of the method.
    """
    base = BASE[fleet]
    whole = replace(
        base,
        **{**SETTING_OF.get(method, {}), **dict(setting or {})},
        options={**base.options, **OPTIONS.get(method, {}), **options},
    )
    given = dict(conditions or {})
    # Without training on devices, one run serves all device conditions.
    who = replace(CONDITIONS[fleet], **{k: x for k, x in given.items() if method not in ALONE or k in OF_ALL})
    return TactflRun(fleet, method, whole, who, seed, tuning)


def line(title: str, under: str, *, fleet: str = UCI_HAR, test: str = HERE, **more: Any) -> Line:
    """A line of a table: its conditions in words, the test set it shows; the rest as of :func:`spec`."""
    shown = {**LINES, **WEIGHTS, **PAIRED, **RIVALS}[title]
    run = spec(fleet, shown.method, **{**(shown.options or {}), **more})
    return Line(title, run, under, lambda outcome: outcome.view(shown.end, test))


TRIED: Final[Mapping[str, Sequence[Mapping[str, Any]]]] = {
    METHOD: (
        {"segment_share": 0.5},
        {"segment_share": 0.6},
        {"segment_share": 0.7},
        {"segments": "ends"},
        {"temperature": 0.1},
        {"temperature": 0.4},
        {"self_weight": 0.0},
        {"self_weight": 1.0},
        {"rotate_deg": 0.0, "gain": 0.0, "jitter": 0.0},
        {"rotate_deg": 45.0},
        {"use_context": False},
        {"summary": "mean", "sharpness": 5.0},
    ),
    FEDAVG: ({"confidence": 0.8}, {"confidence": 0.95}),
    FEDOPT: ({"server_lr": 0.001}, {"server_lr": 0.01}),
    FEDPROX: ({"prox": 0.001}, {"prox": 0.1}),
    MOON: ({"moon": 0.1}, {"moon": 5.0}),
    AUTOENCODER: ({"decoder_dim": 128.0},),
}
"""Method -> other options that are tried."""
LEARNING_RATES: Final = (0.0005, 0.001, 0.002, 0.004)
"""Learning rates of devices, tried with every method."""
TUNES: Final[Sequence[Mapping[str, Any]]] = (
    {"tune": {"lr": 0.001}},
    {"tune": {"lr": 0.002}},
    {"tune": {"lr": 0.004}},
    {"tune": {"lr": 0.002, "rotate_deg": 10.0, "gain": 0.1}},
    {"tune": {"lr": 0.002, "rotate_deg": 20.0, "gain": 0.2}},
    {"tune": {"lr": 0.002, "rotate_deg": 30.0, "gain": 0.2}},
    {"tune_epochs": 60, "tune": {"lr": 0.002}},
)
"""Settings of the fine-tuning at the coordinator, tried with every method."""
