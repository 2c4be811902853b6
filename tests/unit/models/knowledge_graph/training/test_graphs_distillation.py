"""What client and fleet learn of each other, on numbers that can be checked by hand."""

import math

import pytest
import torch

from models.knowledge_graph.training import distillation as d

P = torch.tensor([[0.5, 0.25, 0.25], [0.8, 0.1, 0.1]])
Q = torch.tensor([[0.25, 0.5, 0.25], [0.8, 0.1, 0.1]])


def test_10_each_way_is_a_divergence_and_the_mean_is_over_questions():
    client_BL, server_BL = P.log(), Q.log()
    one = (0.5 * math.log(2) + 0.25 * math.log(0.5)) / 2
    assert float(d.divergence(client_BL, server_BL)) == pytest.approx(one)
    assert float(d.divergence(client_BL, client_BL)) == 0
    other = (0.25 * math.log(0.5) + 0.5 * math.log(2)) / 2
    assert float(d.logit_distillation(client_BL, server_BL)) == pytest.approx(one + other)


def test_a_divergence_is_not_the_same_both_ways():
    one, other = torch.log(torch.tensor([[0.9, 0.1]])), torch.log(torch.tensor([[0.5, 0.5]]))
    forth = 0.9 * math.log(1.8) + 0.1 * math.log(0.2)
    back = 0.5 * math.log(0.5 / 0.9) + 0.5 * math.log(5)
    assert float(d.divergence(one, other)) == pytest.approx(forth)
    assert float(d.divergence(other, one)) == pytest.approx(back)
    assert float(d.logit_distillation(one, other)) == pytest.approx(forth + back)


def test_a_teacher_does_not_move_unless_the_formula_is_taken_alone():
    scores = torch.tensor([[1.0, 0.0, -1.0]]), torch.tensor([[0.0, 1.0, 0.0]])
    teacher, student = (x.clone().requires_grad_() for x in scores)
    d.divergence(teacher.log_softmax(1), student.log_softmax(1)).backward()
    assert teacher.grad is None
    torch.testing.assert_close(student.grad, scores[1].softmax(1) - scores[0].softmax(1))
    d.divergence(teacher.log_softmax(1), student.log_softmax(1), teaches_only=False).backward()
    assert bool((teacher.grad != 0).all())


def test_10_both_learn():
    client, server = (x.log().requires_grad_() for x in (P, Q))
    d.logit_distillation(client.log_softmax(1), server.log_softmax(1)).backward()
    torch.testing.assert_close(client.grad, (P - Q) / 2)
    torch.testing.assert_close(server.grad, (Q - P) / 2)


def test_a_candidate_that_does_not_count_changes_nothing():
    out = torch.full((2, 1), -torch.inf)
    client, server = (torch.cat([x.log(), out], dim=1).requires_grad_() for x in (P, Q))
    loss = d.logit_distillation(client.log_softmax(1), server.log_softmax(1))
    assert float(loss.detach()) == pytest.approx(float(d.logit_distillation(P.log(), Q.log())))
    loss.backward()
    torch.testing.assert_close(client.grad, torch.cat([(P - Q) / 2, torch.zeros(2, 1)], dim=1))
    both = d.logit_distillation(client.log_softmax(1), server.log_softmax(1), teaches_only=False)
    both.backward()
    assert bool(torch.isfinite(client.grad).all())
    assert bool(torch.isfinite(server.grad).all())


def test_11_is_the_squared_distance_summed_over_numbers_and_both_move():
    client = torch.tensor([[[1.0, 2.0]], [[0.0, 0.0]]], requires_grad=True)
    server = torch.tensor([[[0.0, 4.0]], [[3.0, 4.0]]], requires_grad=True)
    loss = d.feature_distillation(client, server)
    assert float(loss.detach()) == (1 + 4 + 9 + 16) / 2
    loss.backward()
    assert client.grad.tolist() == [[[1.0, -2.0]], [[-3.0, -4.0]]]
    assert torch.equal(server.grad, -client.grad)


def test_the_proximal_term_is_that_distance_and_the_fleet_stays():
    client = torch.tensor([[[1.0, 2.0]]], requires_grad=True)
    server = torch.tensor([[[0.0, 4.0]]], requires_grad=True)
    loss = d.proximal(client, server)
    assert float(loss.detach()) == 5
    loss.backward()
    assert client.grad.tolist() == [[[2.0, -4.0]]]
    assert server.grad is None


def test_contrast_compares_cosines_with_the_fleet_and_with_the_round_before():
    client = torch.tensor([[[3.0, 4.0]]])
    server, last = torch.tensor([[[6.0, 8.0]]]), torch.tensor([[[-8.0, 6.0]]])
    expected = -math.log(math.exp(1 / 0.5) / (math.exp(1 / 0.5) + math.exp(0)))
    assert float(d.contrast(client, server, last, 0.5)) == pytest.approx(expected)
    assert float(d.contrast(client, last, last, 0.5)) == pytest.approx(math.log(2))
    assert float(d.contrast(client, last, server, 0.1)) == pytest.approx(10, rel=1e-4)


def test_contrast_moves_the_client_alone_towards_the_fleet():
    client = torch.tensor([[[1.0, 1.0]]], requires_grad=True)
    server, last = (torch.tensor([[x]], requires_grad=True) for x in ([1.0, 0.0], [0.0, 1.0]))
    d.contrast(client, server, last, 1.0).backward()
    assert client.grad[0, 0, 0] < 0 < client.grad[0, 0, 1]
    assert server.grad is None
    assert last.grad is None


def test_contrast_passes_over_entities_without_an_embedding_of_the_round_before():
    client, server = torch.tensor([[[3.0, 4.0]], [[1.0, 0.0]]]), torch.tensor([[[4.0, 3.0]], [[0.0, 1.0]]])
    last = torch.tensor([[[0.0, 1.0]], [[float("nan")] * 2]])
    known_B = torch.tensor([True, False])
    found = d.contrast(client, server, last, 0.2, known_B)
    assert float(found) == pytest.approx(float(d.contrast(client[:1], server[:1], last[:1], 0.2)))
    assert float(d.contrast(client, server, last, 0.2, torch.zeros(2, dtype=torch.bool))) == 0


def test_all_are_zero_where_there_is_nothing():
    none = torch.zeros(0, 1, 4)
    assert float(d.feature_distillation(none, none)) == 0
    assert float(d.divergence(none[:, 0], none[:, 0])) == 0
