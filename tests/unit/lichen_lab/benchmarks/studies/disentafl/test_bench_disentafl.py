"""``lichen bench disentafl``: its runs, store, parts and command, on made-up runs and a made fleet."""

from dataclasses import replace
from pathlib import Path

import pytest

from lichen_lab.benchmarks.studies.disentafl import STUDY, run
from lichen_lab.benchmarks.studies.disentafl import variants as v
from lichen_lab.benchmarks.studies.disentafl.data import fleets
from lichen_lab.benchmarks.studies.disentafl.data.made import build
from lichen_lab.benchmarks.studies.disentafl.parts import ablation, domains, equal, own_share, shapes, table
from lichen_lab.benchmarks.studies.disentafl.settings import DisentAflOutcome, DisentAflRun, DisentAflSetting
from lichen_lab.benchmarks.studies.disentafl.variants import PERSONAL, of_kind
from lichen_lab.benchmarks.study import run_spec
from lichen_lab.benchmarks.study.part import above, in_errors, paired
from lichen_lab.benchmarks.study.study import StudyRequest
from models.methods.disentafl import DisentAflConfig
from protocol.errors import Misconfigured
from tests.support.lab.disentafl_study import made_up

SEEDS = (0, 1, 2)
parts = STUDY.parts


def quiet(_line: str) -> None:
    pass


def test_bench_disentafl_every_method_is_tuned_over_the_same_grid_on_every_fleet() -> None:
    tried: dict[tuple[str, str], set[float]] = {}
    for variant in parts["tune"].variants:
        tried.setdefault((variant.spec.fleet, variant.method), set()).add(variant.spec.setting.lr)
    assert tried == {(fleet, title): set(v.GRID) for fleet in v.FLEETS for title in v.METHODS}
    lines = [line for name in parts for line in parts[name].variants]
    assert {line.spec.fleet for line in lines} == set(v.TUNED_ON) == set(fleets.BUILDERS) == set(fleets.SMALL)
    assert set(v.TUNED_ON.values()) == set(v.FLEETS)
    assert all(lr in v.GRID for by_title in v.BEST_LR.values() for lr in by_title.values())
    assert all(set(by_title) <= set(v.METHODS) for by_title in v.BEST_LR.values())


def test_bench_disentafl_every_option_that_is_tried_is_one_that_the_method_has() -> None:
    from lichen_lab.benchmarks.studies.disentafl.baselines import BASELINES  # noqa: PLC0415 - torch
    from lichen_lab.benchmarks.studies.disentafl.baselines.loop import options_of  # noqa: PLC0415 - likewise

    for title, tried in v.TRIED.items():
        for options in ({}, *tried):
            one = v.spec(v.MERGE_FA, title, **options)
            if one.method == v.METHOD:
                DisentAflConfig.model_validate(one.setting.options)
            else:
                options_of(BASELINES[one.method], one.setting)


def test_bench_disentafl_every_line_has_options_that_its_method_knows() -> None:
    from lichen_lab.benchmarks.studies.disentafl.baselines import BASELINES  # noqa: PLC0415 - torch
    from lichen_lab.benchmarks.studies.disentafl.baselines.loop import options_of  # noqa: PLC0415 - likewise

    for part in parts.values():
        for one in (line.spec for line in part.variants):
            if one.method == v.METHOD:
                own = ("devices_per_round", "selection", "uplink")
                options = {name: value for name, value in one.setting.options.items() if name not in own}
                DisentAflConfig.model_validate(options)
            else:
                options_of(BASELINES[one.method], one.setting)


def test_bench_disentafl_methods_under_one_rule_keep_the_same_of_their_own() -> None:
    kept: dict[tuple[str, str], set[tuple[object, object]]] = {}
    for line in parts["equal"].variants:
        if line.method == v.TITLES[v.LOCAL]:
            continue
        rule = next(rule for rule in equal.RULES if line.method.endswith(f", {rule}"))
        usual = {"last_layer": "shared", "own_share": 0.0} | dict(line.spec.setting.options)
        kept.setdefault((line.dataset, rule), set()).add((usual["last_layer"], usual["own_share"]))
    assert kept == {
        (fleet, rule): {(equal.RULES[rule]["last_layer"], equal.RULES[rule]["own_share"])}
        for fleet, rules in equal.ON_FLEET.items()
        for rule in rules
    }
    table_keys = {line.spec.key() for line in parts["table"].variants}
    for fleet, rules in equal.ON_FLEET.items():
        assert equal.line(fleet, v.AVG, rules[0]).spec.key() in table_keys, "the table's run is made once"
        assert equal.line(fleet, v.TITLES[v.FEDAVG], equal.SHARED).spec.key() in table_keys


def test_bench_disentafl_the_best_baseline_is_sought_under_the_same_rule() -> None:
    part = parts["equal"]
    level = {equal.titled(v.AVG, equal.OWN): 70.0, equal.titled(v.TITLES[v.FEDAVG], equal.OWN): 72.0}

    def made(one: DisentAflRun) -> DisentAflOutcome:
        line = next(t for t in part.variants if t.spec.at(one.seed) == one)
        value = level.get(line.method, 99.0 if equal.SHARED in line.method else 60.0)
        value -= 5 * (line.method == v.TITLES[v.LOCAL])
        made = _outcome({"a1": value + one.seed * (line.method in level)})
        return replace(made, newcomer={"a1": {"label": value - 50}})

    rows = part.rows(part.results({one.key(): made(one) for one in part.specs(SEEDS)}, SEEDS))
    found = {(r.dataset, r.metric): r.mean for r in rows if r.method == equal.titled(v.AVG, equal.OWN)}
    assert found[v.MERGE_FA, equal.BEST_OTHER] == -2.0
    assert found[v.MERGE_FA, f"as a newcomer gets it: {equal.BEST_OTHER}"] == -2.0
    assert found[v.MERGE_FA, above(v.TITLES[v.LOCAL])] == 16.0
    assert (v.VEHICLE, equal.BEST_OTHER) not in found, "another rule there"


def test_bench_disentafl_each_piece_is_beside_the_whole_method_with_all_devices() -> None:
    part = parts["ablation"]

    def made(one: DisentAflRun) -> DisentAflOutcome:
        line = next(t for t in part.variants if t.spec.at(one.seed) == one)
        value = 70.0 if line.method == v.AVG else 60.0 if line.method == ablation.BANDIT else 65.0
        return replace(_outcome({"a1": value + one.seed}), aggregate={"a1": {"label": value - 1}})

    rows = part.rows(part.results({one.key(): made(one) for one in part.specs(SEEDS)}, SEEDS))
    found = {(r.method, r.metric): r.mean for r in rows}
    assert found[ablation.BANDIT, ablation.ABOVE_WHOLE] == -10.0
    assert found[ablation.without("L_orth"), f"as the fleet gives it: {ablation.ABOVE_WHOLE}"] == -5.0
    assert found[ablation.BANDIT, above(ablation.COVERAGE)] == -5.0
    assert (v.AVG, ablation.ABOVE_WHOLE) not in found


def test_bench_disentafl_on_merge_vm_every_method_has_its_own_rate_and_the_same_rules() -> None:
    lines = [line for line in parts["vm"].variants if line.method.endswith((equal.BLENDED, equal.KEEPING))]
    assert {line.method for line in lines} == {
        equal.titled(title, rule)
        for title in (*equal.BASELINES, v.AVG)
        for rule in (equal.BLENDED, equal.KEEPING)
    }
    for line in lines:
        title, rule = line.method.split(", ", 1)
        kept = {"own_share": 0.0} | dict(line.spec.setting.options)
        assert {name: kept[name] for name in equal.RULES[rule]} == equal.RULES[rule]
        assert line.spec.setting.lr == shapes.VM_LR[title]
        assert not line.spec.tuning
    tune = parts["vm_tune"]
    assert all(line.spec.tuning for line in tune.variants)
    done = {one.key(): _outcome({"a1": 100 * one.setting.lr}) for one in tune.specs(SEEDS)}
    best = {
        r.method: r.mean for r in tune.results(done, SEEDS).rows() if r.metric.startswith("best learning")
    }
    tried = {line.method for line in tune.variants if not line.method.endswith(equal.KEEPING)}
    assert best == dict.fromkeys(tried, max(shapes.VM_GRID)), "a single rate is no grid"


def test_bench_disentafl_a_kind_below_local_is_shown_for_each_share_of_own_weights() -> None:
    part = parts["own_share"]

    def made(one: DisentAflRun) -> DisentAflOutcome:
        # The kind "a" gains by the fleet; "b" loses, less the more a device keeps.
        kept = one.setting.options.get("own_share", 0.0)
        ours = {"a1": 80.0, "b1": 50.0 + 10.0 * kept}
        return _outcome({"a1": 70.0, "b1": 60.0} if one.method == v.LOCAL else ours)

    rows = part.rows(part.results({one.key(): made(one) for one in part.specs(SEEDS)}, SEEDS))
    found = {(r.dataset, r.method, r.metric): r.mean for r in rows}
    assert len(found) == len(rows), "each figure once"
    for fleet, shares in own_share.SHARES.items():
        for share in shares:
            assert found[fleet, own_share.named(share), table.of("a")] == 10.0
            assert found[fleet, own_share.named(share), table.WORST] == pytest.approx(10 * share - 10)


def test_bench_disentafl_agreement_is_of_the_devices_of_a_kind() -> None:
    outcome = replace(
        _outcome({"a1": 1, "a2": 1, "b1": 1}),
        domains={"a1": {"0": 3, "1": 1}, "a2": {"0": 4}, "b1": {"2": 2}},
    )
    assert domains.agreement(outcome) == 90.0
    assert domains.agreement(_outcome({"a1": 1})) is None


def test_bench_disentafl_sizes_are_of_the_setting_and_not_of_the_method() -> None:
    made = v.spec(v.VEHICLE, v.AVG, width=768, latent=128)
    assert (made.setting.width, made.setting.latent) == (768, 128)
    assert "width" not in made.setting.options


def _outcome(by_device: dict[str, float]) -> DisentAflOutcome:
    personal = {name: {"label": value} for name, value in by_device.items()}
    return DisentAflOutcome(personal=personal, kinds={name: name[0] for name in by_device})


def test_bench_disentafl_differences_are_paired_by_seed_and_by_kind() -> None:
    ours = {0: _outcome({"a1": 80, "a2": 60, "b1": 50}), 1: _outcome({"a1": 90, "b1": 10})}
    theirs = {0: _outcome({"a1": 70, "a2": 60, "b1": 55}), 2: _outcome({"a1": 1})}
    assert paired(ours, theirs, of_kind("a")) == [5.0]
    assert paired(ours, theirs, of_kind("b")) == [-5.0]
    assert in_errors([1.0, 2.0, 3.0]) == pytest.approx([2 * 3**0.5])
    assert in_errors([1.0]) == in_errors([1.0, 1.0]) == []


def test_bench_disentafl_the_best_baseline_is_of_the_fleet_and_the_worst_kind_is_told() -> None:
    levels = dict.fromkeys(v.METHODS, 50.0) | {v.TITLES[v.FEDAVG]: 60.0, v.AVG: 65.0, v.KD: 99.0}
    part = parts["table"]

    def made(one: DisentAflRun) -> DisentAflOutcome:
        title = next(t.method for t in part.variants if t.spec.at(one.seed) == one)
        kind_b = -20.0 if title == v.AVG else 0.0
        made = _outcome({"a1": levels[title] + one.seed, "b1": levels[title] + kind_b})
        return replace(made, aggregate={name: {"label": levels[title]} for name in made.personal})

    rows = part.rows(part.results({one.key(): made(one) for one in part.specs(SEEDS)}, SEEDS))
    found = {(r.dataset, r.metric): r.mean for r in rows if r.method == v.AVG}
    assert found[v.VEHICLE, PERSONAL.metric] == 65.0 - 10 + 0.5
    assert found[v.VEHICLE, above(v.TITLES[v.LOCAL])] == 5.0
    assert found[v.VEHICLE, f"as the fleet gives it: {above(v.TITLES[v.FEDAVG])}"] == 5.0
    assert found[v.VEHICLE, table.BEST_OTHER] == -5.0, "KD is no baseline"
    assert found[v.VEHICLE, table.of("a")] == 15.0
    assert found[v.VEHICLE, table.WORST] == -5.0


def test_bench_disentafl_a_run_is_of_its_fleet_and_names_the_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = build(0, devices=4, train=12, test=8)
    monkeypatch.setattr(run_spec, "_fleet", lambda *_: fleet)
    setting = DisentAflSetting(rounds=1, batch=8, width=16, latent=8, hidden=8, options={"tokens": 4})
    for name in (v.METHOD, v.ALIGN_FEDAVG):
        outcome = run(DisentAflRun("made", name, setting))
        assert outcome.kinds == {m.name: m.kind for m in fleet.members}
        assert set(outcome.personal) == set(outcome.kinds)


def test_bench_disentafl_tuning_looks_at_no_test_window(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = build(0, devices=2, train=20, test=8)
    monkeypatch.setattr(fleets, "BUILDERS", {"made": lambda _seed: fleet})
    cut = fleets.fleet("made", 0, tuning=True)
    for whole_, part_ in zip(fleet.members, cut.members, strict=True):
        assert len(part_.train) + len(part_.test) == len(whole_.train)


def test_bench_disentafl_a_key_is_of_all_of_a_run() -> None:
    plain = DisentAflRun(v.VEHICLE, v.METHOD)
    others = [
        plain.at(1),
        replace(plain, method=v.LOCAL),
        replace(plain, fleet=v.UCI_HAR),
        replace(plain, setting=replace(plain.setting, lr=0.1)),
        replace(plain, setting=replace(plain.setting, options={"align": 0.0})),
        replace(plain, tuning=True),
        replace(plain, small=True),
    ]
    assert len({one.key() for one in (plain, *others)}) == 1 + len(others)


def test_bench_disentafl_an_interrupted_bench_makes_only_what_is_left(tmp_path: Path) -> None:
    made: list[DisentAflRun] = []

    def noting(one: DisentAflRun) -> DisentAflOutcome:
        made.append(one)
        return made_up(one)

    study = replace(STUDY, run=noting)
    wish = StudyRequest(("table",), seeds=1, workers=1, resume=tmp_path / "runs.jsonl")
    study.results(wish, quiet)
    once = len(made)
    assert once == len(parts["table"].variants)
    study.results(replace(wish, seeds=2), quiet)
    assert len(made) == 2 * once
    assert {one.seed for one in made[once:]} == {1}


def test_bench_disentafl_an_unknown_fleet_is_named() -> None:
    with pytest.raises(Misconfigured, match="no fleet 'bus'"):
        run(DisentAflRun("bus", v.LOCAL))
