"""DomGate: summaries, scores, epsilon-greedy choice, and learning from what was seen."""

from dataclasses import replace

import numpy as np
import pytest

from models.contract import ClientContext, Profile, Tensors
from models.data import window_set
from models.methods.disentafl.routing import domain_gate
from models.methods.disentafl.routing.blob_names import config_of
from tests.support.methods.disentafl_cases import ACC, ALL, task_of, windows_of


def psi_of(task, seed=0) -> Tensors:
    rng = np.random.default_rng(seed)
    return {n: t for m in task.input_names for n, t in domain_gate.initial(task, m, rng).items()}


def pairs(*of: tuple[int, float]) -> np.ndarray:
    return np.array(of, np.float32).reshape(-1, 2)


def test_a_new_gate_has_float32_tensors_of_its_blob_in_the_sizes_of_the_options():
    task = task_of(domains=4, gate_hidden=5)
    psi = domain_gate.initial(task, "gyro", np.random.default_rng(0))
    assert {n: t.shape for n, t in psi.items()} == {
        "gate/gyro/hidden.weight": (5, 6),
        "gate/gyro/hidden.bias": (5,),
        "gate/gyro/out.weight": (4, 5),
        "gate/gyro/out.bias": (4,),
    }
    assert all(t.dtype == np.float32 for t in psi.values())


def test_a_summary_is_mean_and_spread_by_channel_in_the_networks_units():
    task = task_of()  # acc: offset 1, scale 2
    x_BCT = np.stack([np.full((2, 8), 1.0), np.tile([[-3.0, 5.0], [3.0, 3.0]], 4)]).astype(np.float32)
    s_BS = domain_gate.summary(task, "acc", x_BCT)
    expected = [[0, 0, np.log(1e-3), np.log(1e-3)], [0, np.arcsinh(1), np.log(1e-3 + 2), np.log(1e-3)]]
    assert s_BS == pytest.approx(np.array(expected), abs=1e-6)


def test_a_broken_sensors_values_give_a_finite_summary_and_the_same_in_blocks():
    task = task_of()
    x_BCT = np.full((600, 2, 8), 3e38, np.float32)
    x_BCT[::2] *= -1
    x_BCT[300:, :, ::2] = 0
    s_BS = domain_gate.summary(task, "acc", x_BCT)
    assert np.isfinite(s_BS).all()
    assert s_BS == pytest.approx(np.concatenate([domain_gate.summary(task, "acc", x[None]) for x in x_BCT]))
    assert domain_gate.summary(task, "acc", x_BCT[:0]).shape == (0, 4)


def test_scores_are_the_mean_over_windows_then_over_the_profiles_modalities_that_are_there():
    task, windows = task_of(), windows_of(task_of())
    psi = psi_of(task)
    one = {m: domain_gate.scores(task, psi, Profile((m,)), windows) for m in ("acc", "gyro")}
    assert domain_gate.scores(task, psi, ALL, windows) == pytest.approx(
        (one["acc"] + one["gyro"]) / 2, abs=1e-6
    )
    each = [domain_gate.scores(task, psi, ACC, window_set.select(windows, [i])) for i in range(len(windows))]
    assert one["acc"] == pytest.approx(np.mean(each, axis=0), abs=1e-6)
    deaf = windows_of(task, absent=("cam", "gyro"))
    assert domain_gate.scores(task, psi, ALL, deaf) == pytest.approx(one["acc"], abs=1e-6)


def test_windows_in_which_a_modality_is_missing_do_not_count():
    task, windows = task_of(), windows_of(task_of())
    windows.present_BM[5:, 0] = False
    windows.x["acc"][5:] = 1e6  # must not be looked at
    first = window_set.select(windows, range(5))
    assert np.array_equal(
        domain_gate.scores(task, psi_of(task), ACC, windows),
        domain_gate.scores(task, psi_of(task), ACC, first),
    )


def test_with_nothing_to_tell_from_all_domains_score_the_same():
    task = task_of()
    for profile, windows in (
        (ACC, window_set.empty(task)),
        (Profile(()), windows_of(task)),
        (ACC, windows_of(task, absent=("acc",))),
    ):
        assert np.array_equal(
            domain_gate.scores(task, psi_of(task), profile, windows), np.zeros(3, np.float32)
        )
    plain = task_of(families=["mote"])
    assert np.array_equal(domain_gate.scores(plain, {}, ACC, windows_of(plain)), np.zeros(3, np.float32))


def test_devices_with_other_data_choose_other_domains_before_anything_was_learned():
    task = task_of(domains=3)
    chosen = set()
    for seed in range(12):
        windows = windows_of(task)
        windows.x["acc"][:] = windows.x["acc"] * 10.0 ** (seed - 6) + seed
        chosen.add(int(np.argmax(domain_gate.scores(task, psi_of(task), ACC, windows))))
    assert len(chosen) > 1


def context(task, round_=1, device="d0", seed=5) -> ClientContext:
    return ClientContext(task, device, round_, seed)


def test_the_choice_is_the_best_and_at_random_as_often_as_epsilon_says():
    scores_D = np.array([0.1, 0.9, 0.2], np.float32)
    for epsilon, others in ((0.0, 0.0), (0.3, 0.2), (1.0, 2 / 3)):
        task = task_of(epsilon=epsilon)
        config = config_of(task)
        chosen = [domain_gate.choose(scores_D, config, context(task, r)) for r in range(3000)]
        assert set(chosen) <= {0, 1, 2}
        # drawn from fixed seeds: always the same number
        assert np.mean(np.array(chosen) != 1) == pytest.approx(others, abs=0.03)


def test_the_choice_is_the_same_for_the_same_seed_device_and_round_and_differs_otherwise():
    task = task_of(epsilon=1.0, domains=64)
    config, scores_D = config_of(task), np.zeros(64, np.float32)
    made = [domain_gate.choose(scores_D, config, c) for c in (context(task), context(task))]
    assert made[0] == made[1]
    for other in (context(task, 2), context(task, device="d1"), context(task, seed=6)):
        assert domain_gate.choose(scores_D, config, other) != made[0]  # one in 64 would be the same


def test_without_domain_experts_there_is_nothing_to_choose_or_learn():
    for task in (task_of(domains=1, epsilon=1.0), task_of(families=["mote", "mome"], epsilon=1.0)):
        config = config_of(task)
        assert {domain_gate.choose(np.ones(3, np.float32), config, context(task, r)) for r in range(20)} == {
            0
        }
        assert domain_gate.trained(task, {}, ACC, windows_of(task), pairs((0, 0.5)), config) == {}


def test_training_brings_the_scores_of_the_domains_tried_to_what_was_seen():
    task, windows = task_of(), windows_of(task_of())
    config, psi = config_of(task), psi_of(task)
    memory_N2 = pairs((0, 0.9), (1, 0.2), (0, 0.9), (1, 0.2))
    for _ in range(6):  # rounds
        psi |= domain_gate.trained(task, psi, ALL, windows, memory_N2, config)
    found_D = domain_gate.scores(task, psi, ALL, windows)
    assert found_D[:2] == pytest.approx([0.9, 0.2], abs=0.02)
    assert np.argmax(found_D[:2]) == 0


@pytest.mark.parametrize("best", range(3))
def test_trying_at_random_finds_the_best_domain_and_keeps_to_it(best):
    task, windows = task_of(), windows_of(task_of())
    config, psi = config_of(task), psi_of(task)
    memory_N2, liked = pairs(), []
    for round_ in range(60):  # drawn from fixed seeds: always the same
        scores_D = domain_gate.scores(task, psi, ACC, windows)
        liked.append(int(np.argmax(scores_D)))
        domain = domain_gate.choose(scores_D, config, context(task, round_))
        memory_N2 = domain_gate.remembered(memory_N2, domain, 0.8 if domain == best else 0.35, config)
        psi |= domain_gate.trained(task, psi, ACC, windows, memory_N2, config)
    assert set(liked[-10:]) == {best}


def test_newer_pairs_count_more():
    task, windows = task_of(), windows_of(task_of())
    config = config_of(task)
    after = {}
    for name, memory_N2 in (("rising", pairs((0, 0.0), (0, 1.0))), ("falling", pairs((0, 1.0), (0, 0.0)))):
        psi = psi_of(task)
        for _ in range(10):
            psi |= domain_gate.trained(task, psi, ACC, windows, memory_N2, config)
        after[name] = domain_gate.scores(task, psi, ACC, windows)[0]
    assert after["rising"] > 0.5 > after["falling"]


@pytest.mark.parametrize("lr", [1e-3, 0.05, 10.0])
def test_training_never_makes_it_worse_whatever_the_step(lr):
    task = task_of(gate_lr=lr, gate_hidden=64)
    config, psi, windows = config_of(task), psi_of(task), windows_of(task)
    windows.x["acc"][:] *= 1e5
    memory_N2 = pairs((0, 1.0), (1, 0.0), (2, 0.5))

    def error(of: Tensors) -> float:
        return float(np.square(domain_gate.scores(task, of, ACC, windows) - [1.0, 0.0, 0.5]).sum())

    new = psi | domain_gate.trained(task, psi, ACC, windows, memory_N2, config)
    assert all(np.isfinite(t).all() for t in new.values())
    assert error(new) < error(psi)


def test_the_slope_is_that_of_the_error():
    task, windows = task_of(), windows_of(task_of())
    s_BS = domain_gate.summary(task, "acc", windows.x["acc"])
    share_D, goal_D = np.array([0.5, 0.3, 0.2]), np.array([0.9, 0.1, 0.4])
    psi = domain_gate._Psi.of(psi_of(task), "acc")
    stepped = domain_gate._stepped(psi, s_BS, share_D, goal_D, 1.0)
    for field in ("hidden_HS", "hidden_H", "out_DH", "out_D"):
        value, step = getattr(psi, field), 1e-6
        index = tuple(n // 2 for n in value.shape)
        errors = []
        for sign in (1, -1):
            moved = value.copy()
            moved[index] += sign * step
            gap_D = replace(psi, **{field: moved}).of_data(s_BS) - goal_D
            errors.append(float(share_D @ np.square(gap_D)))
        slope = (errors[0] - errors[1]) / (2 * step)
        assert (value - getattr(stepped, field))[index] == pytest.approx(slope, rel=1e-4)


def test_modalities_without_a_window_keep_their_gate_and_foreign_ones_are_not_touched():
    task, psi = task_of(), psi_of(task_of())
    new = domain_gate.trained(
        task, psi, ALL, windows_of(task, absent=("cam", "gyro")), pairs((1, 0.9)), config_of(task)
    )
    assert set(new) == set(psi)
    changed = {name.split("/")[1] for name in new if not np.array_equal(new[name], psi[name])}
    assert changed == {"acc"}
    assert all(
        np.array_equal(t, psi[n])
        for n, t in domain_gate.trained(task, psi, ALL, windows_of(task), pairs(), config_of(task)).items()
    )


def test_the_memory_keeps_the_newest_and_drops_what_the_options_do_not_know():
    config = config_of(task_of(gate_memory=3, domains=2))
    memory_N2 = domain_gate.memory_of({}, config)
    assert memory_N2.shape == (0, 2)
    for i in range(5):
        memory_N2 = domain_gate.remembered(memory_N2, i % 2, i / 10, config)
    assert memory_N2 == pytest.approx(pairs((0, 0.2), (1, 0.3), (0, 0.4)))
    assert memory_N2.dtype == np.float32
    longer = pairs(*((1, i / 10) for i in range(5)))  # from before the option was lowered
    assert domain_gate.memory_of({domain_gate.MEMORY: longer}, config) == pytest.approx(longer[-3:])
    odd = pairs((0, 0.5), (2, 0.5), (-1, 0.5), (0.5, 0.5), (1, np.nan), (np.nan, 0.5), (1, 0.7))
    assert domain_gate.memory_of({domain_gate.MEMORY: odd}, config) == pytest.approx(
        pairs((0, 0.5), (1, 0.7))
    )
    for shape in ((3,), (2, 3), ()):
        assert domain_gate.memory_of({domain_gate.MEMORY: np.zeros(shape, np.float32)}, config).shape == (
            0,
            2,
        )


def test_no_value_of_psi_moves_far_in_a_round():
    task = task_of(gate_lr=10.0)
    psi = psi_of(task)
    new = domain_gate.trained(task, psi, ACC, windows_of(task), pairs((0, 1.0), (1, 0.0)), config_of(task))
    moved = max(float(np.abs(new[name] - psi[name]).max()) for name in new)
    assert 0 < moved <= domain_gate.MAX_STEP * 1.0001
