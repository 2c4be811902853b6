"""Rows of a table: only those that a step took move, each by Adam of its own."""

import torch

from models.knowledge_graph.networks.sparse_embedding import Descent, EmbeddingRows
from models.training.local import Adam


def table(rows=6, dim=3):
    return EmbeddingRows(torch.randn(rows, dim, generator=torch.Generator().manual_seed(5)), lr=0.1)


def loss_of(taken_BD, target=1.0):
    return ((taken_BD - target) ** 2).sum()


def test_rows_that_no_batch_touched_do_not_move_by_a_bit():
    rows, before = table(), table().value_ED
    for taken in ([1, 4], [4, 1, 4], [4]):
        Descent(rows).descend(loss_of(rows.take(torch.tensor(taken))))
    moved_E = (rows.value_ED != before).any(dim=1)
    assert moved_E.tolist() == [False, True, False, False, True, False]
    assert rows.steps_E.tolist() == [0, 2, 0, 0, 3, 0]
    assert not rows.mean_ED[0].any()


def test_each_row_goes_as_adam_on_that_row_alone_would_take_it():
    rows = table()
    alone = {e: table().value_ED[e].clone().requires_grad_() for e in range(6)}
    adam = {e: Adam([row], lr=0.1) for e, row in alone.items()}
    for step, taken in enumerate([[0, 1, 2], [2, 3], [2, 0], [5], [0, 1, 2, 3, 5]]):
        Descent(rows).descend(loss_of(rows.take(torch.tensor(taken)), step))
        for e in taken:
            adam[e].descend(loss_of(alone[e], step))
    expected_ED = torch.stack([alone[e].detach() for e in range(6)])
    torch.testing.assert_close(rows.value_ED, expected_ED)


def test_the_first_step_is_as_long_as_the_learning_rate_however_late_it_comes():
    rows = table()
    for _ in range(50):
        Descent(rows).descend(loss_of(rows.take(torch.tensor([0]))))
    before_D = rows.value_ED[1].clone()
    Descent(rows).descend(loss_of(rows.take(torch.tensor([1])), target=9.0))
    torch.testing.assert_close(rows.value_ED[1] - before_D, torch.full((3,), 0.1))


def test_slopes_of_a_row_that_is_taken_twice_add_up():
    once, twice, apart = table(), table(), table()
    for _ in range(3):
        Descent(once).descend(
            2 * loss_of(once.take(torch.tensor([2]))) + loss_of(once.take(torch.tensor([0])))
        )
        Descent(twice).descend(loss_of(twice.take(torch.tensor([2, 0, 2]))))
        Descent(apart).descend(
            loss_of(apart.take(torch.tensor([2]))) + loss_of(apart.take(torch.tensor([0, 2])))
        )
    torch.testing.assert_close(twice.value_ED, once.value_ED)
    torch.testing.assert_close(apart.value_ED, once.value_ED)
    assert apart.steps_E.tolist() == [3, 0, 3, 0, 0, 0]


def test_rows_come_in_the_order_asked_for():
    rows = table()
    asked_B = torch.tensor([5, 0, 0, 3])
    assert torch.equal(rows.take(asked_B), rows.value_ED[asked_B])


def test_what_was_taken_but_is_in_no_loss_stays_and_is_forgotten():
    rows, before_ED = table(), table().value_ED
    rows.take(torch.tensor([3]))
    Descent(rows).descend(loss_of(rows.take(torch.tensor([1]))))
    assert (rows.value_ED != before_ED).any(dim=1).tolist() == [False, True, False, False, False, False]
    after_ED = rows.value_ED.clone()
    rows.step()
    assert torch.equal(rows.value_ED, after_ED)


def test_two_tables_and_a_projection_go_down_one_slope_together():
    entities, relations, weight = table(), table(), torch.eye(3).requires_grad_()
    descent = Descent(entities, relations, dense=Adam([weight], lr=0.01))
    losses = []
    for _ in range(30):
        loss = loss_of(entities.take(torch.tensor([0, 2])) @ weight + relations.take(torch.tensor([1, 1])))
        losses.append(loss.item())
        descent.descend(loss)
    assert losses[-1] < 0.05 * losses[0]
    assert not torch.equal(weight.detach(), torch.eye(3))
    assert relations.steps_E.tolist() == [0, 30, 0, 0, 0, 0]


def test_moments_carry_over_to_the_next_round():
    whole, first = table(), table()
    for _ in range(2):
        Descent(whole).descend(loss_of(whole.take(torch.tensor([1, 2]))))
        Descent(first).descend(loss_of(first.take(torch.tensor([1, 2]))))
    second = EmbeddingRows(first.value_ED.clone(), lr=0.1)
    second.resume(first.mean_ED.clone(), first.square_ED.clone(), first.steps_E.clone())
    for rows in (whole, second):
        Descent(rows).descend(loss_of(rows.take(torch.tensor([2, 3]))))
    assert torch.equal(second.value_ED, whole.value_ED)
    assert first.steps_E.tolist() == [0, 2, 2, 0, 0, 0]
