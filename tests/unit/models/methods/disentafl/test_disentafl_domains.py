"""Domains on a device of DisentAFL: which one trains, what it is worth; and how a version is judged."""

from dataclasses import replace

import numpy as np
import pytest

from models.methods.disentafl.client import make_client
from models.methods.disentafl.round_plan import Work, split
from models.methods.disentafl.routing import domain_gate
from models.tensors import apply, flatten
from protocol.errors import Misconfigured
from tests.support.methods.disentafl_cases import ACC, ALL
from tests.support.methods.disentafl_learning import context, learnable, on, small, taken, train, whole


def test_the_domain_of_the_route_is_trained_and_no_other():
    task = small()
    result = train(task, learnable(task), on(task, whole(task), ACC, 2), profile=ACC)
    assert {n.rpartition("/")[0] for n in result.tensors if n.startswith("domain/")} == {"domain/acc.2"}
    assert result.extra["domain"] == result.metrics["domain"] == 2
    assert result.tensors["domain/acc.2/layers.0.query.up.weight"].any()


def test_of_a_state_with_all_domains_one_is_trained():
    task = small()
    result = train(task, learnable(task), whole(task))
    domains = {n.split("/")[1][-1] for n in result.tensors if n.startswith("domain/")}
    assert domains == {str(result.extra["domain"])}


def test_the_gate_remembers_what_its_domain_was_worth_and_says_what_it_prefers():
    task = small(gate_memory=3, epsilon=0.0)
    state, private = whole(task), {}
    for round_ in range(1, 6):
        result = train(task, learnable(task), on(task, state, ALL, round_ % 3), private, round_=round_)
        private = result.private
    pairs_N2 = private[domain_gate.MEMORY]
    assert pairs_N2[:, 0].tolist() == [0, 1, 2]
    assert pairs_N2[-1, 1] == pytest.approx(result.extra["accuracy"])
    psi = apply(flatten(state), {n: t for n, t in result.tensors.items() if n.startswith("gate/")})
    scores_D = domain_gate.scores(task, psi, ALL, learnable(task))
    assert result.extra["best"] == int(np.argmax(scores_D))
    assert result.metrics["accuracy"] == pytest.approx(result.extra["accuracy"])


def test_without_a_choice_of_domains_all_windows_train_and_there_is_no_gate():
    for config in ({"domains": 1}, {"families": ["mote", "mome"]}):
        task = small(**config)
        result = train(task, learnable(task), on(task, whole(task), ALL))
        assert result.metrics["judges"] == 0
        assert result.extra["accuracy"] is None
        assert domain_gate.MEMORY not in result.private
        assert not any(name.startswith("gate/") for name in result.tensors)


def test_the_windows_that_judge_are_some_of_each_class_and_others_in_every_round():
    task = small(validation=0.25)
    windows, state = learnable(task), whole(task)
    works = [Work.of(context(task, round_=r), windows, on(task, state, ALL)) for r in (1, 1, 2)]
    first, again, later = (work.judges_B for work in works)
    assert first.tolist() == again.tolist() != later.tolist()
    for k in range(3):
        share = first[windows.y_B == k].mean()
        assert 0.15 < share < 0.35


@pytest.mark.parametrize("share", [0.0, 0.2, 0.5, 0.89])
@pytest.mark.parametrize("count", [1, 2, 3, 10])
def test_however_few_windows_there_are_one_trains(count, share):
    for seed in range(20):
        judges_B = split(np.zeros(count, np.int64), share, np.random.default_rng(seed))
        assert not judges_B.all()
        assert abs(int(judges_B.sum()) - count * share) < 1 or count * share > count - 1


def test_a_single_window_trains():
    task = small()
    result = train(task, learnable(task, count=1), on(task, whole(task), ALL))
    assert result.metrics["steps"] == 1
    taken(task, whole(task), result)


def test_evaluation_judges_label_and_names_the_other_targets():
    task = small()
    state, windows = whole(task), learnable(task)
    found = make_client().evaluate(task, windows, state)
    assert found.metrics.keys() >= {"accuracy", "macro_f1", "loss", "windows"}
    assert found.metrics.keys() >= {"pose/accuracy", "speed/r2", "picture/r2"}
    assert np.shape(found.confusion_KK) == (3, 3)


def test_without_label_the_first_labelled_classification_stands_in():
    task = small()
    windows = replace(learnable(task), y_B=np.full(48, -1))
    windows.targets["speed"][:] = np.nan
    windows.targets["pose"][10:] = np.nan
    found = make_client().evaluate(task, windows, whole(task))
    assert np.shape(found.confusion_KK) == (2, 2)
    assert found.metrics["windows"] == 10
    assert not {"label/accuracy", "pose/accuracy", "speed/r2"} & found.metrics.keys()


@pytest.mark.parametrize(
    ("config", "option"),
    [({"aggregate": "kd"}, 'aggregate = "avg"'), ({"last_layer": "private"}, 'last_layer = "both"')],
)
def test_where_the_fleet_shares_no_whole_model_evaluation_says_which_option_gives_one(config, option):
    task = small(**config)
    with pytest.raises(Misconfigured, match=option):
        make_client().evaluate(task, learnable(task), whole(task))
