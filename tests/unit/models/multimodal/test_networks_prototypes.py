import math

import pytest
import torch

from models.multimodal.inference import InferenceModel
from models.multimodal.network import build, two_branch_task
from models.multimodal.prototypes import complete, expected, log_votes, normalise, posterior

YES = torch.tensor([True, True, True])


def test_normalise_gives_the_asked_length_and_leaves_zero_alone() -> None:
    z = normalise(torch.tensor([[3.0, 4.0], [0.0, 0.0]]), 8.0)
    assert torch.allclose(z, torch.tensor([[4.8, 6.4], [0.0, 0.0]]))


def test_votes_are_the_softmax_of_negative_distances() -> None:
    values = torch.tensor([[0.0, 0.0], [3.0, 4.0], [6.0, 8.0]])
    votes = log_votes(torch.zeros(1, 2), values, YES)
    weights = [math.exp(-d) for d in (0.0, 5.0, 10.0)]
    assert torch.allclose(votes.exp(), torch.tensor([[w / sum(weights) for w in weights]]), atol=1e-6)


def test_classes_without_prototype_take_no_share_of_a_modalitys_vote() -> None:
    # Its (meaningless) values lie exactly on the feature: that must not attract it.
    values = torch.tensor([[9.0, 0.0], [0.0, 0.0], [0.0, 9.0]])
    p = posterior([torch.zeros(1, 2)], torch.tensor([[True]]), [values], [torch.tensor([True, False, True])])
    assert torch.allclose(p, torch.tensor([[0.5, 0.0, 0.5]]))


def test_a_modality_is_indifferent_to_a_class_that_it_does_not_know() -> None:
    far = torch.tensor([[0.0], [0.0], [0.0]])
    known_to_a, known_to_b = torch.tensor([True, True, False]), torch.tensor([True, True, True])
    z = [torch.zeros(1, 1), torch.zeros(1, 1)]
    p = posterior(z, torch.tensor([[True, True]]), [far, far], [known_to_a, known_to_b])
    assert torch.allclose(p, torch.full((1, 3), 1 / 3))


def test_missing_modalities_do_not_vote() -> None:
    values = torch.eye(3) * 5
    z = [values[0:1], values[1:2]]
    both = [values, values]
    seen = [YES, YES]
    assert posterior(z, torch.tensor([[True, False]]), both, seen).argmax() == 0
    assert posterior(z, torch.tensor([[False, True]]), both, seen).argmax() == 1


def test_evidence_of_present_modalities_adds_up() -> None:
    values = torch.tensor([[0.0], [1.0]])
    seen = torch.tensor([True, True])
    z = torch.tensor([[0.0]])
    one = posterior([z], torch.tensor([[True]]), [values], [seen])
    two = posterior([z, z], torch.tensor([[True, True]]), [values, values], [seen, seen])
    odds = lambda p: (p[0, 0] / p[0, 1]).item()  # noqa: E731 - one line, used twice below
    assert odds(two) == pytest.approx(odds(one) ** 2, rel=1e-5)


def test_expected_prototype_is_over_the_classes_that_have_one() -> None:
    values = torch.tensor([[1.0, 0.0], [7.0, 7.0], [0.0, 1.0]])
    seen = torch.tensor([True, False, True])
    p = torch.tensor([[0.2, 0.6, 0.2], [0.0, 1.0, 0.0]])
    assert torch.allclose(expected(p, values, seen), torch.tensor([[0.5, 0.5], [0.5, 0.5]]), atol=1e-6)


@pytest.mark.parametrize("count", [0, 1, 2])
def test_nothing_known_or_nothing_present_stays_finite(count: int) -> None:
    seen = torch.arange(3) < count
    mask = torch.tensor([[True, True], [True, False], [False, False]])
    z = [torch.randn(3, 4), torch.randn(3, 4)]
    values = [torch.randn(3, 4), torch.randn(3, 4)]
    done = complete(z, mask, values, [seen, torch.zeros(3, dtype=torch.bool)])
    assert all(part.isfinite().all() for part in done)
    assert torch.equal(done[0][:2], z[0][:2])
    assert torch.equal(done[1][1], torch.zeros(4))  # its modality has no prototype at all


def model(**options) -> InferenceModel:
    torch.manual_seed(3)
    task = two_branch_task()
    net = build(task)
    tables = {name: (torch.randn(6, 128), torch.ones(6)) for name in net.names}
    return InferenceModel(net, tables, **options)


def windows(batch: int) -> list[torch.Tensor]:
    torch.manual_seed(4)
    return [torch.randn(batch, 3, 128), torch.randn(batch, 3, 128)]


@pytest.mark.parametrize("impute", ["prototype", "zero_feature", "zero_input"])
def test_what_a_missing_modality_holds_does_not_matter(impute: str) -> None:
    net, (a, g) = model(impute=impute), windows(3)
    mask = torch.tensor([[1.0, 1.0], [0.0, 1.0], [1.0, 0.0]])
    with torch.no_grad():
        want, _ = net(mask, a, g)
        a[1], g[2] = math.nan, math.inf
        got, _ = net(mask, a, g)
    assert torch.equal(got, want)
    assert torch.allclose(got.sum(1), torch.ones(3))


def test_nothing_present_gives_equal_probabilities() -> None:
    net, (a, g) = model(), windows(2)
    with torch.no_grad():
        p, logits = net(torch.tensor([[0.0, 0.0], [1.0, 1.0]]), a * math.nan, g)
    assert torch.allclose(p[0], torch.full((6,), 1 / 6))
    assert torch.equal(logits[0], torch.zeros(6))


def test_missing_feature_is_the_prototype_that_the_other_modality_points_at() -> None:
    task = two_branch_task()
    net = build(task).eval()
    a, g = windows(1)
    with torch.no_grad():
        z = normalise(net.encode("accelerometer", a), 8.0)
        acc = -z.repeat(6, 1)
        acc[2] = z  # class 2 fits exactly, the others are 16 away
        gyro = torch.randn(6, 128)
        tables = {"accelerometer": (acc, torch.ones(6)), "gyroscope": (gyro, torch.ones(6))}
        features = InferenceModel(net, tables).features(torch.tensor([[True, False]]), (a, g))
    assert torch.allclose(features[1], normalise(gyro, 8.0)[2:3], atol=1e-3)


def test_prototypes_that_saw_no_round_are_not_used_even_if_not_finite() -> None:
    net = build(two_branch_task())
    values = torch.full((6, 128), math.nan)
    values[1] = 1.0
    rounds = torch.tensor([0.0, 1.0, 0.0, 0.0, 0.0, 0.0])
    both = dict.fromkeys(net.names, (values.numpy(), rounds.numpy()))
    with torch.no_grad():
        p, _ = InferenceModel(net, both)(torch.tensor([[1.0, 0.0]]), *windows(1))
    assert p.isfinite().all()


def test_without_any_prototype_it_still_answers() -> None:
    with torch.no_grad():
        p, _ = InferenceModel(build(two_branch_task()), {})(torch.tensor([[1.0, 0.0]]), *windows(1))
    assert p.isfinite().all()
