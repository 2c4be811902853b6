"""Networks that stand in for absent modalities: their shape, their loss, and what they must leave alone."""

import pytest
import torch

from models.knowledge_graph.networks.autoencoders import Autoencoder, Cascade, Mmin, step_embedding
from models.knowledge_graph.networks.imputation import IMPUTERS, ImputerSettings, hidden
from models.knowledge_graph.networks.modality_vectors import imputed, masked_distance
from models.training.local import Adam

SMALL = ImputerSettings(widths=(8, 6, 4), steps=3, step_dim=4)
NAN = float("nan")


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def made(kind, numbers=6, of=SMALL):
    torch.manual_seed(0)
    return IMPUTERS[kind](numbers, of)


def vectors(count=5):
    h_BPD = torch.randn(count, 3, 2, generator=generator())
    present_BP = torch.tensor([[1, 1, 1], [1, 0, 1], [1, 1, 0], [1, 0, 0], [1, 1, 1]], dtype=torch.bool)[
        :count
    ]
    return torch.where(present_BP[:, :, None], h_BPD, NAN), present_BP


def test_7_is_summed_over_what_is_there_and_the_mean_is_over_entities():
    made_BPD = torch.tensor([[[1.0, 2.0], [NAN, 3.0]], [[0.0, 0.0], [1.0, 1.0]]], requires_grad=True)
    true_BPD = torch.tensor([[[0.0, 0.0], [5.0, NAN]], [[3.0, 0.0], [1.0, 5.0]]], requires_grad=True)
    present_BP = torch.tensor([[True, False], [True, True]])
    loss = masked_distance(made_BPD, true_BPD, present_BP)
    assert float(loss.detach()) == (1 + 4 + 9 + 16) / 2
    loss.backward()
    assert made_BPD.grad.tolist() == [[[1, 2], [0, 0]], [[-3, 0], [0, -4]]]
    assert true_BPD.grad is None
    assert float(masked_distance(made_BPD[:0], true_BPD[:0], present_BP[:0]).detach()) == 0


def test_6_gradients_flow_into_what_is_there_or_into_what_is_made_never_both():
    h_BPD, present_BP = vectors()
    h_BPD.requires_grad_()
    made_BPD = torch.full_like(h_BPD, 7.0).requires_grad_()
    full_BPD = imputed(h_BPD, present_BP, made_BPD)
    assert torch.equal(full_BPD[present_BP], h_BPD[present_BP])
    assert full_BPD[~present_BP].unique().tolist() == [7]
    full_BPD.sum().backward()
    assert torch.equal(h_BPD.grad, present_BP[:, :, None].expand(-1, -1, 2).float())
    assert torch.equal(made_BPD.grad, 1 - h_BPD.grad)


def test_an_autoencoder_has_three_layers_down_and_three_back():
    shapes = [tuple(p.shape) for p in Autoencoder(1536).parameters() if p.ndim == 2]
    assert shapes == [(512, 1536), (256, 512), (128, 256), (256, 128), (512, 256), (1536, 512)]


def test_an_autoencoder_may_make_any_number_positive_or_not():
    torch.manual_seed(0)
    made_BH = Autoencoder(6, (8, 6, 4))(torch.randn(64, 6, generator=generator()))
    assert made_BH.min() < 0 < made_BH.max()


def test_each_block_of_a_cascade_adds_what_it_makes_of_the_sum_before_it():
    torch.manual_seed(0)
    net, x_BH = Cascade(6, (8, 6, 4), blocks=3), torch.randn(4, 6)
    one, two, three = net.blocks
    first = x_BH + one(x_BH)
    second = first + two(first)
    torch.testing.assert_close(net(x_BH), second + three(second))


def test_every_block_is_told_the_step():
    torch.manual_seed(0)
    net, x_BH = Cascade(6, (8, 6, 4), blocks=2, step_dim=4), torch.randn(1, 6).repeat(2, 1)
    same, other = net(x_BH, torch.tensor([1, 2]))
    assert not torch.equal(same, other)
    assert net.blocks[1].encoder[0].in_features == 6 + 4
    with pytest.raises(ValueError, match="step_dim is an even number"):
        Cascade(6, step_dim=5)


def test_a_step_is_embedded_as_cosines_and_sines():
    angle_R = 3 * torch.tensor([1.0, 1e-2])
    expected = torch.cat([angle_R.cos(), angle_R.sin()])
    torch.testing.assert_close(step_embedding(torch.tensor([0, 3]), 4)[1], expected)
    assert step_embedding(torch.tensor([0]), 4).tolist() == [[1, 1, 0, 0]]


def test_mmin_leads_back_from_what_it_imagined():
    torch.manual_seed(0)
    net, x_BH = Mmin(6, (8, 6, 4)), torch.randn(4, 6)
    forth_BH, back_BH = net(x_BH)
    torch.testing.assert_close(forth_BH, net.forth(x_BH))
    torch.testing.assert_close(back_BH, net.back(forth_BH))


def test_the_loss_of_mmin_asks_for_both_ways():
    (h_BPD, present_BP), imputer = vectors(), made("mmin")
    forth_BH, back_BH = imputer.net(torch.nan_to_num(h_BPD).flatten(1))
    expected = sum(masked_distance(x.view(-1, 3, 2), h_BPD, present_BP) for x in (forth_BH, back_BH))
    torch.testing.assert_close(imputer.loss(h_BPD, present_BP, generator()), expected)


def test_what_mmin_imagined_stands_in():
    (h_BPD, present_BP), imputer = vectors(), made("mmin")
    forth_BH, _ = imputer.net(torch.nan_to_num(h_BPD).flatten(1))
    found = imputer(h_BPD, present_BP, generator())
    torch.testing.assert_close(found[~present_BP], forth_BH.view(-1, 3, 2)[~present_BP])


def test_hide_stands_in_with_the_way_back_from_the_last_step():
    (h_BPD, present_BP), imputer = vectors(), made("hide")
    lacking_B = ~present_BP.all(dim=1)
    x_LH = torch.nan_to_num(h_BPD[lacking_B]).flatten(1)
    noise_LH = torch.randn(x_LH.shape, generator=generator(4))
    last_LH = imputer.schedule.noised(x_LH, torch.tensor([3] * len(x_LH)), noise_LH)
    made_LPD = imputer.schedule.reversed(imputer.net, last_LH).view(-1, 3, 2)
    found = imputer(h_BPD, present_BP, generator(4))
    absent_LP = ~present_BP[lacking_B]
    torch.testing.assert_close(found[lacking_B][absent_LP], made_LPD[absent_LP])


def test_the_loss_of_hide_is_at_a_drawn_step_of_a_noised_vector():
    (h_BPD, present_BP), imputer = vectors(), made("hide")
    chance, x_BH = generator(3), torch.nan_to_num(h_BPD).flatten(1)
    step_B = imputer.schedule.drawn(5, chance)
    noised_BH = imputer.schedule.noised(x_BH, step_B, torch.randn(5, 6, generator=chance))
    made_BH = imputer.net(noised_BH, step_B)
    expected = masked_distance(made_BH.view(-1, 3, 2), h_BPD, present_BP)
    torch.testing.assert_close(imputer.loss(h_BPD, present_BP, generator(3)), expected)


@pytest.mark.parametrize("kind", IMPUTERS)
def test_training_never_reads_what_is_absent_and_its_input_gets_no_gradient_there(kind):
    (h_BPD, present_BP), imputer = vectors(), made(kind)
    h_BPD.requires_grad_()
    loss = imputer.loss(h_BPD, present_BP, generator())
    loss.backward()
    assert bool(torch.isfinite(h_BPD.grad).all())
    assert not bool(h_BPD.grad[~present_BP].any())
    assert all(bool(torch.isfinite(p.grad).all()) for p in imputer.parameters())
    other_BPD = torch.where(present_BP[:, :, None], h_BPD, 1e6)
    assert torch.equal(imputer.loss(other_BPD, present_BP, generator()), loss)


@pytest.mark.parametrize("kind", IMPUTERS)
def test_the_loss_on_imputed_parts_alone_reaches_the_network(kind):
    (h_BPD, present_BP), imputer = vectors(), made(kind)
    imputer(h_BPD, present_BP, generator())[~present_BP].square().sum().backward()
    used = imputer.net.forth if kind == "mmin" else imputer.net
    assert all(bool((p.grad != 0).any()) for p in used.parameters() if p.ndim == 2)


def test_hide_may_save_the_gradients_of_all_but_the_last_steps():
    (h_BPD, present_BP), slopes = vectors(), []
    h_BPD.requires_grad_()
    for steps in (None, 1):
        imputer = made(
            "hide", of=ImputerSettings(widths=(8, 6, 4), steps=3, gradient_steps=steps, step_dim=4)
        )
        full_BPD = imputer(h_BPD, present_BP, generator())
        full_BPD[~present_BP].sum().backward()
        slopes.append([p.grad.clone() for p in imputer.parameters()])
    assert all(bool(torch.isfinite(slope).all()) and bool(slope.any()) for slope in slopes[1])
    assert not torch.allclose(slopes[0][0], slopes[1][0])


@pytest.mark.parametrize("kind", IMPUTERS)
def test_entities_that_lack_nothing_are_left_as_they_are(kind):
    imputer, h_BPD = made(kind), torch.randn(4, 3, 2)
    assert imputer(h_BPD, torch.ones(4, 3, dtype=torch.bool), generator()) is h_BPD


@pytest.mark.parametrize("kind", IMPUTERS)
def test_the_unit_is_the_networks_alone(kind):
    h_BPD, present_BP = vectors()
    fine = ImputerSettings(widths=(8, 6, 4), steps=3, step_dim=4, unit=0.01, scale=1e-8)
    coarse = ImputerSettings(widths=(8, 6, 4), steps=3, step_dim=4, unit=1.0, scale=1e-4)
    small = made(kind, of=fine)(0.01 * h_BPD, present_BP, generator())
    torch.testing.assert_close(
        100 * small, made(kind, of=coarse)(h_BPD, present_BP, generator()), rtol=1e-4, atol=1e-5
    )


def test_only_modalities_that_are_there_are_hidden_and_as_many_as_said():
    present_BP = torch.tensor([[True, True, True], [True, False, True]]).repeat(2000, 1)
    seen_BP = hidden(present_BP, 0.3, generator())
    assert bool(seen_BP[:, 0].all())
    assert not bool((seen_BP & ~present_BP).any())
    share = 1 - seen_BP[:, 1:].sum() / present_BP[:, 1:].sum()
    assert float(share) == pytest.approx(0.3, abs=0.03)
    assert torch.equal(hidden(present_BP, 0.0, generator()), present_BP)


@pytest.mark.parametrize("kind", IMPUTERS)
def test_a_hidden_part_is_asked_for_but_not_shown(kind):
    imputer = made(kind)
    h_BPD, all_BP = torch.randn(4, 3, 2, generator=generator()), torch.ones(4, 3, dtype=torch.bool)
    seen_BP = torch.tensor([[True, False, True]]).repeat(4, 1)
    h_BPD.requires_grad_()
    imputer.loss(h_BPD, all_BP, generator(), seen_BP).backward()
    assert not bool(h_BPD.grad[:, 1].any())
    assert bool(h_BPD.grad[:, 2].any())
    found = imputer.loss(h_BPD.detach(), all_BP, generator(), seen_BP)
    without = imputer.loss(h_BPD.detach(), seen_BP, generator(), seen_BP)
    assert float(found.detach()) > float(without.detach())


@pytest.mark.parametrize("kind", ["cra", "hide", "mmin"])
def test_residual_networks_learn_to_stand_in_only_where_something_is_hidden_from_them(kind):
    # both modalities follow from the structure; what is made is compared with what was there
    chance = generator(5)
    s_BD = torch.randn(256, 2, generator=chance)
    h_BPD = torch.stack([s_BD, s_BD.flip(1), -s_BD], dim=1)
    present_BP = torch.rand(256, 3, generator=chance) < 0.6
    present_BP[:, 0] = True
    errors = {}
    for share in (0.0, 0.4):
        imputer = made(kind, of=ImputerSettings(widths=(24, 16, 12), blocks=2, steps=3, step_dim=4))
        adam = Adam(imputer.parameters(), lr=0.01)
        for _ in range(150):
            adam.descend(imputer.loss(h_BPD, present_BP, chance, hidden(present_BP, share, chance)))
        with torch.no_grad():
            apart = imputer(h_BPD, present_BP, generator(6)) - h_BPD
        errors[share] = float(apart[~present_BP].square().mean() / h_BPD[~present_BP].square().mean())
    assert errors[0.4] < 0.2
    assert errors[0.0] > 0.5
