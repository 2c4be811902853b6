import ctypes
import resource
import subprocess
import sys

import numpy as np
import pytest
import torch

from models.seeds import derive_round_seed, derive_seed
from models.training import local


def test_seeds_depend_on_every_part_and_are_stable():
    assert derive_seed(1, "a") == 131921258436413157
    assert derive_round_seed(7, 3, "usnea") == 149220505
    seeds = {derive_seed(*p) for p in ((1, "a"), (1, "b"), (2, "a"), (1, "a", 1), ("1a",), (1, "a", "1", ""))}
    assert len(seeds) == 6
    assert all(0 <= s < 2**63 for s in seeds)


@pytest.mark.parametrize(("count", "size"), [(1, 4), (4, 4), (5, 4), (129, 128), (7, 2), (0, 3)])
def test_batches_hold_every_window_once_and_are_of_nearly_equal_length(count, size):
    parts = list(local.batches(count, size, torch.Generator().manual_seed(0)))
    assert sorted(i for part in parts for i in part.tolist()) == list(range(count))
    lengths = [len(part) for part in parts]
    assert max(lengths, default=0) <= size
    assert max(lengths, default=0) - min(lengths, default=0) <= 1


@pytest.mark.parametrize(("momentum", "weight_decay"), [(0, 0), (0.9, 0), (0.9, 0.01), (0, 0.1)])
def test_our_descent_is_torchs_and_leaves_unused_parameters_alone(momentum, weight_decay):
    def run(make):
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
        unused = torch.nn.Parameter(torch.ones(2))
        x, y = torch.randn(8, 3), torch.randint(0, 2, (8,))
        step = make([*net.parameters(), unused])
        for _ in range(5):
            step(torch.nn.functional.cross_entropy(net(x), y))
        return [p.detach().numpy().tobytes() for p in net.parameters()], unused

    def ours(parameters):
        return local.Sgd(parameters, 0.1, momentum, weight_decay).descend

    def theirs(parameters):
        sgd = torch.optim.SGD(parameters, 0.1, momentum, weight_decay=weight_decay, foreach=False)

        def step(loss):
            sgd.zero_grad()
            loss.backward()
            sgd.step()

        return step

    (mine, unused), (reference, _) = run(ours), run(theirs)
    for a, b in zip(mine, reference, strict=True):
        np.testing.assert_allclose(
            np.frombuffer(a, np.float32), np.frombuffer(b, np.float32), rtol=1e-5, atol=1e-7
        )
    assert unused.tolist() == [1, 1]


@pytest.mark.parametrize("weight_decay", [0, 0.1])
def test_adam_on_all_parameters_at_once_is_torchs_on_each(weight_decay):
    def run(make):
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
        x, y = torch.randn(8, 3), torch.randint(0, 2, (8,))
        step = make(net.parameters())
        for _ in range(7):
            step(torch.nn.functional.cross_entropy(net(x), y))
        return [p.detach().clone() for p in net.parameters()]

    def theirs(parameters):
        adam = torch.optim.AdamW(parameters, 0.05, weight_decay=weight_decay, foreach=False)

        def step(loss):
            adam.zero_grad()
            loss.backward()
            adam.step()

        return step

    mine = run(lambda parameters: local.Adam(parameters, 0.05, weight_decay).descend)
    for a, b in zip(mine, run(theirs), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_adam_leaves_alone_what_the_loss_does_not_depend_on():
    used, unused = (torch.nn.Parameter(torch.ones(2)) for _ in range(2))
    adam = local.Adam([used, unused], 0.1)
    for _ in range(3):
        adam.descend(used.square().sum())
    assert unused.tolist() == [1, 1]
    assert float(used.detach().max()) < 0.8


def test_rotations_turn_and_neither_stretch_nor_mirror():
    turn_B33 = local.rotations(50, 30, torch.Generator().manual_seed(0))
    eye = torch.eye(3).expand(50, 3, 3)
    assert torch.allclose(turn_B33 @ turn_B33.transpose(1, 2), eye, atol=1e-5)
    assert torch.allclose(torch.linalg.det(turn_B33), torch.ones(50), atol=1e-5)
    cosine_B = (turn_B33.diagonal(dim1=1, dim2=2).sum(dim=1) - 1) / 2
    assert float(cosine_B.min()) >= np.cos(np.radians(30)) - 1e-5
    assert float(cosine_B.min()) < np.cos(np.radians(20))


def test_augmentation_turns_three_axis_modalities_together_and_keeps_missing_at_zero():
    generator = torch.Generator().manual_seed(0)
    a_BCT = torch.randn(4, 3, 10, generator=generator)
    a_BCT[1] = 0
    x = {"acc": a_BCT, "gyro": a_BCT.clone(), "mic": torch.ones(4, 2, 10), "rgb": torch.ones(4, 3, 12)}
    turned = local.augmented(x, 40, 0, [("acc", "gyro")], generator)
    assert torch.equal(turned["rgb"], x["rgb"]), "colours are no axes"
    assert torch.equal(turned["acc"], turned["gyro"])
    assert not torch.allclose(turned["acc"], a_BCT)
    assert torch.allclose(turned["acc"].norm(dim=1), a_BCT.norm(dim=1), atol=1e-5)
    assert torch.equal(turned["mic"], x["mic"])
    assert not turned["acc"][1].any()
    scaled = local.augmented(x, 0, 0.2, [], generator)["mic"]
    factors_B = scaled[:, 0, 0]
    assert torch.equal(scaled, factors_B[:, None, None].expand_as(scaled))
    assert ((factors_B >= 0.8) & (factors_B <= 1.2)).all()
    assert len(set(factors_B.tolist())) == 4
    untouched = local.augmented(x, 0, 0, [], generator)
    assert all(torch.equal(untouched[name], x[name]) for name in x)


@pytest.mark.long
@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="not glibc")
def test_blocks_of_a_step_are_reused_by_the_next_one():
    # 100 MB: larger than glibc reuses by itself. Aligned blocks find their places over the first steps.
    script = (
        "import resource, torch; from models.training import local; local.start_deterministic(0)\n"
        "faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n"
        "for _ in range(20): torch.ones(100 * 2**18)\n"
        "before = faults()\n"
        "for _ in range(20): torch.ones(100 * 2**18)\n"
        "print(faults() - before)"
    )
    run = [sys.executable, "-P", "-c", script]
    faults = int(subprocess.run(run, capture_output=True, text=True, check=True).stdout)
    assert faults < 10 * 100 * 2**20 / resource.getpagesize()  # half of what new pages would need


def test_an_adam_that_resumes_goes_on_as_if_it_had_never_stopped():
    def steps(adam: local.Adam, weights: list[torch.Tensor], turns: range) -> None:
        for turn in turns:
            adam.descend(sum(((i + 1) * (w - turn) ** 2).sum() for i, w in enumerate(weights)))

    def fresh() -> list[torch.Tensor]:
        return [torch.ones(3, requires_grad=True), torch.full((2, 2), 2.0, requires_grad=True)]

    whole = fresh()
    steps(local.Adam(whole, 0.1), whole, range(6))
    halves = fresh()
    first = local.Adam(halves, 0.1)
    steps(first, halves, range(3))
    again = [w.detach().clone().requires_grad_() for w in halves]
    second = local.Adam(again, 0.1)
    second.resume(first.moments([3, 4]))
    steps(second, again, range(3, 6))
    for a, b in zip(whole, again, strict=True):
        torch.testing.assert_close(a, b)
    moved = [w.detach().clone().requires_grad_() for w in halves]
    anew = local.Adam(moved, 0.1)
    kept = first.moments([3, 4])
    anew.resume([kept[0], (torch.zeros(4), torch.zeros(4), 0.0)])  # a part that is new counts its own steps
    steps(anew, moved, range(3, 4))
    torch.testing.assert_close(moved[1], halves[1].detach() - 0.1 * torch.sign(halves[1].detach() - 3))
