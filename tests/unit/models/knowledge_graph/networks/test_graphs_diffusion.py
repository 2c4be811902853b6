"""The noise's schedule and the way back, on numbers that can be checked by hand."""

import math

import pytest
import torch

from models.knowledge_graph.networks.diffusion import Schedule

ROUGH = Schedule(2, low=0.1, high=0.3, scale=1.0)
"""abar: 1, .9, .63."""


def test_betas_rise_evenly_between_the_scaled_ends():
    expected = 1e-4 * torch.tensor([5e-4, 0.0125 + 3.75e-4, 0.02525, 0.037625, 5e-2], dtype=torch.float64)
    torch.testing.assert_close(Schedule(5).beta_T, expected)
    assert Schedule(1).beta_T.tolist() == [1e-4 * 5e-4]


def test_4_some_of_the_vector_is_left_and_some_noise_is_in():
    x_BH, noise_BH = torch.tensor([[1.0, -2.0]]).repeat(3, 1), torch.tensor([[10.0, 20.0]]).repeat(3, 1)
    made = ROUGH.noised(x_BH, torch.tensor([0, 1, 2]), noise_BH)
    torch.testing.assert_close(made[0], x_BH[0])
    for step, abar in ((1, 0.9), (2, 0.63)):
        expected = math.sqrt(abar) * x_BH[0] + math.sqrt(1 - abar) * noise_BH[0]
        torch.testing.assert_close(made[step], expected)


def test_17_the_mean_of_the_step_before():
    x_BH, made_BH = torch.tensor([[2.0], [2.0]]), torch.tensor([[-1.0], [-1.0]])
    found = ROUGH.mean(x_BH, made_BH, torch.tensor([1, 2]))
    stay, made = math.sqrt(0.7) * 0.1 / 0.37, math.sqrt(0.9) * 0.3 / 0.37
    torch.testing.assert_close(found, torch.tensor([[-1.0], [2 * stay - made]]))


@pytest.mark.parametrize("schedule", [ROUGH, Schedule(1), Schedule(7), Schedule(100)])
def test_4_and_17_fit_each_other_at_every_step(schedule):
    # of x_t without noise and the true vector, the mean is x_{t-1} without noise
    found = schedule.stay_S[1:] * schedule.keep_S[1:] + schedule.made_S[1:]
    torch.testing.assert_close(found, schedule.keep_S[:-1])
    variance = (1 - schedule.beta_T) * schedule.noise_S[:-1].double() ** 2 + schedule.beta_T
    torch.testing.assert_close(variance, schedule.noise_S[1:].double() ** 2, rtol=1e-6, atol=0)


def test_noise_of_the_papers_scale_is_not_lost_in_rounding():
    assert float(Schedule(5).noise_S[1]) == pytest.approx(math.sqrt(5e-8), rel=1e-6)
    assert float(Schedule(100).noise_S[100]) == pytest.approx(math.sqrt(2.525e-4), rel=1e-3)


def test_5_the_way_back_asks_the_network_at_every_step_and_ends_with_its_last_word():
    asked = []

    def net(x_BH, step_B):
        asked.append((step_B.tolist(), x_BH.clone()))
        return x_BH / 2

    start_BH = torch.tensor([[8.0], [4.0]])
    end_BH = ROUGH.reversed(net, start_BH)
    factor = math.sqrt(0.7) * 0.1 / 0.37 + math.sqrt(0.9) * 0.3 / 0.37 / 2
    assert [steps for steps, _ in asked] == [[2, 2], [1, 1]]
    torch.testing.assert_close(asked[1][1], factor * start_BH)
    torch.testing.assert_close(end_BH, factor * start_BH / 2)


def test_5_gradients_flow_through_as_many_last_steps_as_said():
    weight_S = torch.tensor([0.0, 0.5, 0.5, 0.5], requires_grad=True)
    schedule, start_BH = Schedule(3, low=0.1, high=0.3, scale=1.0), torch.ones(2, 1, requires_grad=True)
    ends = {}
    for steps in (None, 3, 1):
        weight_S.grad = start_BH.grad = None
        end_BH = schedule.reversed(lambda x_BH, step_B: weight_S[step_B, None] * x_BH, start_BH, steps)
        end_BH.sum().backward()
        ends[steps] = end_BH.tolist()
        assert [bool(slope) for slope in weight_S.grad] == [False, True, steps != 1, steps != 1]
        assert (start_BH.grad is None) == (steps == 1)
    assert ends[None] == ends[3] == ends[1]
    with torch.no_grad():
        assert not schedule.reversed(lambda x_BH, _: weight_S[1] * x_BH, start_BH).requires_grad


def test_8_steps_are_drawn_from_the_first_to_the_last_each_as_likely():
    step_B = Schedule(4).drawn(8000, torch.Generator().manual_seed(0))
    counts = torch.bincount(step_B, minlength=5)
    assert counts[0] == 0
    assert len(counts) == 5
    assert bool((counts[1:] - 2000).abs().max() < 200)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"steps": 0}, "at least one step, not 0"),
        ({"steps": 3, "scale": 0.0}, "betas must rise within 0..1"),
        ({"steps": 3, "low": 0.1, "high": 0.05}, "from 1e-05 to 5"),
        ({"steps": 3, "high": 2.0, "scale": 1.0}, "to 2.0"),
    ],
)
def test_a_schedule_that_cannot_be_is_refused(settings, words):
    with pytest.raises(ValueError, match=words):
        Schedule(**settings)
