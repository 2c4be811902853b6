"""Attacks on membership and on windows: what they find on data that gives it away, and on a small fleet."""

import numpy as np
import pytest

from lichen_lab.benchmarks.studies.privacy import fleets, methods
from lichen_lab.benchmarks.studies.privacy.audit import inversion, rates
from lichen_lab.benchmarks.studies.privacy.audit.prototype_membership import FeatureModel
from lichen_lab.benchmarks.studies.privacy.fleets import PrivacyFleet
from lichen_lab.benchmarks.studies.privacy.settings import (
    INVERSION,
    MODEL,
    PROTOTYPES,
    UPDATE,
    PrivacyOutcome,
    PrivacySetting,
)
from lichen_lab.benchmarks.study.run_spec import quiet
from lichen_lab.simulation.data.access.split import DataSplit, complete
from tests.support.lab.simulated import task, windows

OPTIONS = {"epochs": 1, "batch": 8, "lr": 0.1}


def halved(devices: int = 6) -> PrivacyFleet:
    """Devices with a few windows, as many that do not train, and other people."""
    inside = {f"d{n}": windows(6, n) for n in range(devices)}
    outside = {f"d{n}": windows(6, 100 + n) for n in range(devices)}
    return PrivacyFleet(task(), inside, windows(80, 99), outside, np.arange(80) // 20)


def attacked(method: str, noise: float = 0.0, **config: object) -> PrivacyOutcome:
    setting = PrivacySetting(
        rounds=2, rate=0.5, noise_multiplier=noise, width=4, features=8, config={**OPTIONS, **config}
    )
    return methods.RUNS[method](halved(), setting, 3, quiet)


def test_rates_are_those_of_the_definition() -> None:
    members_N, others_N = np.array([3.0, 2.0, 1.0, 1.0]), np.array([0.0, 1.0, 2.5, -1.0])
    pairs = [(m > o) + 0.5 * (m == o) for m in members_N for o in others_N]
    assert rates.auc(members_N, others_N) == pytest.approx(np.mean(pairs))
    assert rates.hits(members_N, others_N, 0.01) == 0.25
    assert rates.hits(members_N, others_N, 0.25) == 0.5
    assert rates.figures(others_N, others_N)["auc"] == 50.0


def test_pairs_are_neighbours_that_share_no_sample() -> None:
    stream = np.arange(5000.0)
    cut = np.stack([stream[8 * n : 8 * n + 16] for n in (*range(11), *range(300, 306))])[:, None]
    part = DataSplit(
        complete({"a": cut.astype(np.float32)}, np.zeros(len(cut), np.int64)), np.ones(len(cut), np.int64)
    )
    found_N2 = fleets.pairs(part)
    assert found_N2.tolist() == [[0, 2], [4, 6], [8, 10], [11, 13]]
    samples = cut[found_N2.reshape(-1)].reshape(-1)
    assert len(set(samples.tolist())) == len(samples)


def test_prototypes_of_normal_features_give_their_windows_away_and_noise_hides_them() -> None:
    rng, size, count = np.random.default_rng(2), 24, 4
    person_B = np.repeat(np.arange(20), 40)
    centre_PD = 0.3 * rng.standard_normal((20, size))
    z_BD = (1.0 + centre_PD[person_B] + rng.standard_normal((800, size))).astype(np.float32)
    model = FeatureModel(z_BD, np.zeros(800, np.int64), person_B)
    found: dict[float, list[list[float]]] = {0.0: [[], []], 4.0: [[], []]}
    for _ in range(100):
        own_ND = 1.0 + 0.3 * rng.standard_normal(size) + rng.standard_normal((2 * count, size))
        for noise, sides in found.items():
            v_D = own_ND[:count].mean(axis=0) + noise * rng.standard_normal(size)
            ratio_N = model.ratio(own_ND, v_D, 0, count, noise**2)
            sides[0] += ratio_N[:count].tolist()
            sides[1] += ratio_N[count:].tolist()
    clear, hidden = (rates.auc(*map(np.array, found[noise])) for noise in (0.0, 4.0))
    assert clear > 0.9
    assert 0.4 < hidden < 0.65


def test_attacks_on_a_model_report_whom_they_find() -> None:
    outcome = attacked(MODEL)
    assert {"loss auc", "loss tpr", "ratio auc", "ratio tpr"} <= outcome.attack.keys()
    assert all(0 <= value <= 100 for value in outcome.attack.values())
    assert outcome.epsilon is None
    assert outcome.accuracy is not None


def test_attacks_on_an_update_find_more_than_on_a_noisy_mean() -> None:
    one, mean = attacked(UPDATE, 0.0, seen="one"), attacked(UPDATE, 4.0, seen="mean")
    assert one.attack["gradient auc"] > 60
    assert one.attack["gradient auc"] > mean.attack["gradient auc"]
    assert one.taken == 3.0


def test_attacks_on_prototypes_run_with_noise_and_without() -> None:
    plain, noisy = attacked(PROTOTYPES), attacked(PROTOTYPES, dp_noise=1.0)
    assert plain.epsilon is None
    assert noisy.epsilon == pytest.approx(1 + 2 * (np.log(1e5)) ** 0.5)
    assert plain.attack["windows"] == noisy.attack["windows"] >= 1


@pytest.mark.parametrize("noise", [0.0, 4.0])
def test_inversion_reports_errors_of_every_window(noise: float) -> None:
    outcome = attacked(INVERSION, noise, windows=2, codec="int8")
    searched = {"error", "nearest", "better", "better_than_constant"}
    assert outcome.attack.keys() == searched | {"features", "features_of_others"}
    assert np.isfinite(list(outcome.attack.values())).all()
    assert inversion.attack is methods.RUNS[INVERSION]


def test_one_step_on_one_window_tells_its_features_and_noise_hides_them() -> None:
    plain = attacked(INVERSION, windows=1, codec="float32").attack
    assert plain["features"] < 1e-3 < plain["features_of_others"]
    assert (
        attacked(INVERSION, 4.0, windows=1, codec="float32").attack["features"] > plain["features_of_others"]
    )
