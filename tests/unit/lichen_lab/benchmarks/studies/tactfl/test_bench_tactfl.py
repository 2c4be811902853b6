"""``lichen bench tactfl``: its runs, store, parts, page and command, on made-up runs and a made fleet."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lichen_lab.benchmarks.studies.tactfl import STUDY, run
from lichen_lab.benchmarks.studies.tactfl import variants as v
from lichen_lab.benchmarks.studies.tactfl.parts import broken, missing, protocol, table
from lichen_lab.benchmarks.studies.tactfl.parts.labels import SHARES
from lichen_lab.benchmarks.studies.tactfl.report import PAGE
from lichen_lab.benchmarks.studies.tactfl.settings import (
    HERE,
    TRAINED,
    TUNED,
    TactflOutcome,
    TactflRun,
    alone,
)
from lichen_lab.benchmarks.studies.tactfl.variants import ACCURACY, F1, Results
from lichen_lab.benchmarks.study import run_spec
from lichen_lab.benchmarks.study.part import Part, above, least
from models.methods.tactfl import TactflConfig
from protocol.errors import Misconfigured
from protocol.tasks.folding import Aggregator
from tests.support.lab import tactfl_study
from tests.support.lab.pages import check_whole
from tests.support.lab.tactfl_study import made_up

SEEDS = (0, 1, 2)
parts = STUDY.parts


def finished(part: Part[Any, Any], seeds: tuple[int, ...] = SEEDS) -> Results:
    return part.results({one.key(): made_up(one) for one in part.specs(seeds)}, seeds)


@pytest.fixture(params=parts)
def part(request: pytest.FixtureRequest) -> Part[Any, Any]:
    return parts[request.param]


def test_bench_tactfl_lines_of_a_part_show_several_runs_or_ends(part: Part[Any, Any]) -> None:
    shown = {(line.spec.key(), repr(line.view(made_up(line.spec)))) for line in part.variants}
    assert len(shown) >= 2


def test_bench_tactfl_every_option_is_one_that_its_method_has(part: Part[Any, Any]) -> None:
    from lichen_lab.benchmarks.studies.tactfl.baselines import BASELINES  # noqa: PLC0415 - torch
    from lichen_lab.benchmarks.studies.tactfl.baselines.loop import options_of  # noqa: PLC0415 - likewise

    for one in part.specs((0,)):
        Aggregator.model_validate(dict(one.setting.aggregator))
        tune = {f"finetune_{name}": value for name, value in one.setting.tune.items()}
        own = dict(one.setting.options)
        if one.method in BASELINES:
            own = options_of(BASELINES[one.method], one.setting)[0]
        TactflConfig.model_validate({**own, **tune})


def test_bench_tactfl_what_asks_nothing_of_devices_is_run_once_for_all_their_conditions() -> None:
    runs = {one.key() for one in parts["missing"].specs((0,)) if one.method in v.ALONE}
    assert len(runs) == len(v.ALONE)
    assert runs <= {one.key() for one in parts["table"].specs((0,))}
    shares = [one for one in parts["labels"].specs((0,)) if one.method == v.RANDOM]
    assert len({one.key() for one in shares}) == len(SHARES), "the labelled windows are another matter"


def _outcome(f1: float, tuned: float | None = None, **more: object) -> TactflOutcome:
    ends = {TRAINED: f1} | ({} if tuned is None else {TUNED: tuned})
    scores = {end: {HERE: {"f1": value, "accuracy": value + 1}} for end, value in ends.items()}
    return TactflOutcome(scores, **more)  # type: ignore[arg-type]  # its own fields


def _rows(part: Part[Any, Any], outcome: dict[str, TactflOutcome]) -> dict[tuple[str, str, str], float]:
    """Method, conditions, metric -> mean, where each method has one outcome, one point better by seed."""

    def made(one: TactflRun) -> TactflOutcome:
        found = outcome[one.method]
        scores = {
            end: {name: {k: x + one.seed for k, x in s.items()} for name, s in by_test.items()}
            for end, by_test in found.scores.items()
        }
        return replace(found, scores=scores)

    rows = part.rows(part.results({one.key(): made(one) for one in part.specs(SEEDS)}, SEEDS))
    return {(row.method, row.setting, row.metric): row.mean for row in rows}


def test_bench_tactfl_lines_show_ends_of_runs_and_differences_are_paired() -> None:
    outcome = {name: _outcome(50.0, 60.0) for name in (v.METHOD, *v.BASELINES)}
    outcome |= {v.LABELLED: _outcome(80.0), v.METHOD: _outcome(78.0, 83.5), v.RANDOM: _outcome(70.0, 79.0)}
    found = _rows(parts["table"], outcome)
    under = table.UNDER
    assert found[v.TACTFL, under, F1] == 79.0
    assert found[v.TACTFL, under, ACCURACY] == 80.0
    assert found[v.TACTFL_TUNED, under, F1] == 84.5
    assert found[v.LABELLED_ONLY, under, F1] == 81.0
    assert found[v.NO_CONTRAST_TUNED, under, F1] == 80.0
    assert found[v.TACTFL_TUNED, under, above(v.LABELLED_ONLY)] == 3.5
    assert found[v.TACTFL, under, above(v.BASELINES[v.RANDOM])] == 8.0


def test_bench_tactfl_the_worst_seed_is_told() -> None:
    part = parts["table"]

    def made(one: TactflRun) -> TactflOutcome:
        tuned = {0: 81.0, 1: 79.5, 2: 95.0}[one.seed]
        return _outcome(80.0, tuned)

    rows = part.rows(part.results({one.key(): made(one) for one in part.specs(SEEDS)}, SEEDS))
    worst = [
        row for row in rows if (row.method, row.metric) == (v.TACTFL_SHORTER_TUNED, least(v.LABELLED_ONLY))
    ]
    assert [(row.mean, row.n) for row in worst] == [(-0.5, 1)]
    assert [goal.met(row) for goal in part.goals for row in worst if goal.concerns(row)] == [False]


def test_bench_tactfl_missing_rates_stand_beside_the_papers_figures() -> None:
    outcome = {name: _outcome(76.83, 80.0) for name in (v.METHOD, *v.BASELINES)}
    found = _rows(parts["missing"], outcome)
    for method in (v.TACTFL, v.TACTFL_PLAIN):
        assert found[method, missing.under(0.7), missing.BESIDE] == pytest.approx(77.83 - 75.83)
    assert found[v.BASELINES[v.FEDOPT], missing.under(0.8), missing.BESIDE] == pytest.approx(77.83 - 56.45)
    assert (v.TACTFL_TUNED, missing.under(0.5), missing.BESIDE) not in found


def test_bench_tactfl_the_papers_protocol_is_shown_by_round_beside_the_paper() -> None:
    part = parts["protocol"]
    for one in part.specs((0,)):
        assert (one.setting.batch, one.setting.rounds, one.setting.chosen) == (16, 200, 5)
        assert one.conditions.devices == (10 if one.method in v.ALONE else 20)
    under, gyroscope = protocol.under(0.5), alone("gyroscope")

    def made(one: TactflRun) -> TactflOutcome:
        by_end = {TRAINED: 70.0 + one.seed, TUNED: 80.0}
        scores = {end: {HERE: {"f1": f1, "accuracy": f1}} for end, f1 in by_end.items()}
        scores[TRAINED][gyroscope] = {"f1": 40.0 + one.seed, "accuracy": 0.0}
        return TactflOutcome(scores, [(15, 50.0 + one.seed), (200, 70.0 + one.seed)])

    results = part.results({one.key(): made(one) for one in part.specs(SEEDS)}, SEEDS)
    rows = [*part.rows(results), *part.computed(False, run_spec.quiet)]
    found = {(row.method, row.setting, row.metric): row.mean for row in rows}
    assert len(found) == len(rows)
    assert found[v.TACTFL_PLAIN, under, F1] == 71.0
    assert found[v.TACTFL_PLAIN, under, protocol.after(15)] == 51.0
    assert found[v.TACTFL_PLAIN, under, protocol.ALONE[gyroscope]] == 41.0
    assert (v.TACTFL_PLAIN_TUNED, under, protocol.after(15)) not in found, "the curve is of the frozen head"
    assert (v.TACTFL_PLAIN, under, protocol.after(200)) not in found, "that is its last version"
    assert found[protocol.reported(v.TACTFL_PLAIN), under, F1] == 77.92
    assert [goal.limit for goal in part.goals for row in rows if goal.concerns(row)] == [77.9, 75.8, 75.1]


def test_bench_tactfl_a_broken_device_is_told_by_its_weight_and_its_cost() -> None:
    part = parts["broken"]
    words = list(broken.FAULTS)

    def made(one: TactflRun) -> TactflOutcome:
        hurt = one.conditions.broken != ""
        lost = 1.5 if one.setting.options.get("weighting") != "equal" else 6.0
        shares = {"d00": 0.4, "d01": 1.2} if hurt else {"d00": 1.0, "d01": 1.0}
        kinds = {"d00": "broken" if hurt else "", "d01": ""}
        return _outcome(80.0 - lost * hurt, 84.0, shares=shares, kinds=kinds)

    rows = part.rows(part.results({one.key(): made(one) for one in part.specs(SEEDS)}, SEEDS))
    found = {(row.method, row.setting, row.metric): row.mean for row in rows}
    assert found[v.TACTFL, words[1], broken.WEIGHT] == pytest.approx(0.4)
    assert found[v.TACTFL, words[1], broken.COST] == 1.5
    assert found[v.NO_SIMILARITY, words[2], broken.COST] == 6.0
    assert (v.TACTFL, words[0], broken.WEIGHT) not in found


def test_bench_tactfl_a_run_is_of_its_fleet_and_names_the_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = tactfl_study.fleet()
    fleet = replace(fleet, members=(replace(fleet.members[0], kind="odd"), *fleet.members[1:]))
    monkeypatch.setattr(run_spec, "_fleet", lambda *_: fleet)
    told: list[str] = []
    outcome = run(TactflRun("made", v.METHOD, tactfl_study.TINY), told.append)
    assert outcome.kinds == {"d0": "odd", "d1": "", "d2": ""}
    assert told[-1] == "round 2 of 2"
    assert run(TactflRun("made", v.METHOD, tactfl_study.TINY)).scores == outcome.scores


def test_bench_tactfl_a_key_is_of_all_of_a_run() -> None:
    plain = v.spec(v.UCI_HAR, v.METHOD)
    others = [
        plain.at(1),
        v.spec(v.UCI_HAR, v.FEDAVG),
        v.spec(v.HAPT, v.METHOD),
        v.spec(v.UCI_HAR, v.METHOD, setting={"lr": 0.1}),
        v.spec(v.UCI_HAR, v.METHOD, setting={"tune": {"lr": 0.1}}),
        v.spec(v.UCI_HAR, v.METHOD, conditions={"missing": 0.5}),
        v.spec(v.UCI_HAR, v.METHOD, temperature=0.7),
        v.spec(v.UCI_HAR, v.METHOD, tuning=True),
        replace(plain, small=True),
    ]
    assert len({one.key() for one in (plain, *others)}) == 1 + len(others)


def test_bench_tactfl_an_unknown_fleet_is_named() -> None:
    with pytest.raises(Misconfigured, match="no fleet 'bus'"):
        run(TactflRun("bus", v.METHOD))


def test_bench_tactfl_the_page_is_whole_and_fetches_nothing(tmp_path: Path) -> None:
    results = [finished(parts[name], SEEDS[:2]) for name in ("table", "labels", "broken", "weights")]
    rows = [row for one in results for row in one.part.rows(one)]
    PAGE.write(results, rows, tmp_path / "new" / "page.html")
    page = (tmp_path / "new" / "page.html").read_text()
    check_whole(page)
    for words in (v.TACTFL_TUNED, "broken: noise", "F1 by condition", "90 % labelled", v.TACTFL_LITERAL):
        assert words in page
