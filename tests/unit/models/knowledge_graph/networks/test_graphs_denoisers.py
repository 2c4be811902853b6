"""Networks that remove the noise of HidE's diffusion: shape, step, and what each can learn."""

import pytest
import torch

from models.knowledge_graph.networks.denoisers import DENOISERS
from models.knowledge_graph.networks.imputation import IMPUTERS, ImputerSettings

PARTS, DIM = 3, 4


def made(kind):
    torch.manual_seed(0)
    return DENOISERS[kind](PARTS * DIM, (DIM, 16, 16), 3, 6)


@pytest.mark.parametrize("kind", DENOISERS)
def test_a_denoiser_keeps_the_shape_and_is_given_the_step(kind):
    x_BH = torch.randn(1, PARTS * DIM).repeat(2, 1)
    same_BH = made(kind)(x_BH, torch.tensor([1, 2]))
    assert same_BH.shape == x_BH.shape
    assert not torch.equal(same_BH[0], same_BH[1])


@pytest.mark.parametrize("kind", DENOISERS)
def test_every_parameter_of_a_denoiser_gets_a_gradient(kind):
    net = made(kind)
    net(torch.randn(8, PARTS * DIM), torch.arange(1, 9)).square().sum().backward()
    silent = [name for name, p in net.named_parameters() if p.grad is None or not bool(p.grad.any())]
    assert [name for name in silent if not name.endswith("bias")] == []


def test_attention_of_parts_reads_one_part_to_make_another():
    net, x_BH = made("mha"), torch.randn(1, PARTS * DIM, requires_grad=True)
    net(x_BH, torch.tensor([1]))[0, :DIM].sum().backward()
    assert bool(x_BH.grad[0, DIM:].any())


@pytest.mark.long
@pytest.mark.parametrize("kind", DENOISERS)
def test_hide_learns_a_part_from_another_with_each_denoiser(kind):
    """The second part is twice the first; after training, an imputed one is near that."""
    torch.manual_seed(0)
    draw = torch.Generator().manual_seed(0)
    imputer = IMPUTERS["hide"](
        2 * DIM, ImputerSettings(widths=(16, 16, 16), denoiser=kind, steps=1, step_dim=4)
    )
    if kind == "mha":
        imputer.net = DENOISERS["mha"](2 * DIM, (DIM,), 3, 4)
    adam = torch.optim.Adam(imputer.parameters(), lr=0.01)
    seen_BP = torch.tensor([[True, False]]).repeat(32, 1)
    for _ in range(300):
        first_BD = torch.randn(32, DIM, generator=draw)
        h_BPD = torch.stack([first_BD, 2 * first_BD], dim=1)
        adam.zero_grad()
        imputer.loss(h_BPD, torch.ones(32, 2, dtype=torch.bool), draw, seen_BP).backward()
        adam.step()
    with torch.no_grad():
        made_BD = imputer(h_BPD, seen_BP, draw)[:, 1]
    assert float((made_BD - h_BPD[:, 1]).square().mean()) < 0.5 * float(h_BPD[:, 1].square().mean())
