"""Names of routes, and the router that chooses one on the device."""

from dataclasses import replace

import numpy as np
import pytest

from models.contract import ClientContext, Profile
from models.data import window_set
from models.methods.disentafl.router import make_router, profile_in
from models.methods.disentafl.routing import domain_gate
from models.methods.disentafl.routing.blob_names import config_of, domains_of, profile_of, route
from models.registry import method
from tests.support.methods.disentafl_cases import ACC, ALL, GYRO, state_of, task_of, windows_of


def context(task, profile=None, round_=1) -> ClientContext:
    return ClientContext(task, "d0", round_, 5, profile)


def part_of(state, task, profile):
    return {name: state[name] for name in make_router().first(task, profile)}


def test_a_device_asks_for_its_own_gates_first_and_only_inputs_have_one():
    task, router = task_of(), make_router()
    assert router.first(task, ACC) == ("gate/acc",)
    assert router.first(task, Profile(("nose", "gyro", "cam", "acc"), ("label",))) == (
        "gate/acc",
        "gate/gyro",
    )
    assert router.first(task_of(domains=1), ALL) == ()
    assert router.first(task_of(families=["mote"]), ALL) == ()


def test_the_route_is_that_of_the_profile_through_one_domain_of_every_modality():
    task, windows = task_of(), windows_of(task_of())
    state, router = state_of(task), make_router()
    for profile in (ACC, GYRO, ALL):
        chosen = router.choose(context(task, profile), windows, part_of(state, task, profile), {})
        domains = domains_of(chosen)
        assert len(domains) == 1
        assert chosen == route(task, profile, domains)
        assert profile_of(task, chosen) == profile
        assert set(chosen) <= set(method("disentafl").server().route(task, profile)) <= set(state)
    assert not any("gyro" in name or "pose" in name for name in route(task, ACC, (0,)))


def test_the_route_follows_the_gate_and_over_the_rounds_epsilon():
    task, windows = task_of(epsilon=0.0), windows_of(task_of())
    state, router = state_of(task), make_router()
    for best in range(3):
        state["gate/acc"]["gate/acc/out.bias"] = np.eye(3, dtype=np.float32)[best] * 10
        chosen = router.choose(context(task, ACC), windows, part_of(state, task, ACC), {})
        assert domains_of(chosen) == (best,)
    curious = task_of(epsilon=1.0)
    found = {
        router.choose(context(curious, ACC, r), windows, part_of(state, curious, ACC), {}) for r in range(30)
    }
    assert len(found) == 3
    again = [router.choose(context(curious, ACC, 7), windows, part_of(state, curious, ACC), {})] * 2
    assert again[0] == again[1]


def test_the_agents_choice_is_the_one_that_the_gate_makes_for_the_client():
    task, windows = task_of(), windows_of(task_of())
    state = state_of(task)
    psi = {n: t for blob in ("gate/acc", "gate/gyro") for n, t in state[blob].items()}
    for round_ in range(5):
        scores_D = domain_gate.scores(task, psi, ALL, windows)
        domain = domain_gate.choose(scores_D, config_of(task), context(task, ALL, round_))
        route_ = make_router().choose(context(task, ALL, round_), windows, part_of(state, task, ALL), {})
        assert domains_of(route_) == (domain,)


def test_without_a_choice_of_domains_the_route_needs_no_state():
    windows = windows_of(task_of())
    for task, count in ((task_of(domains=1), 1), (task_of(families=["mote", "mome"]), 0)):
        chosen = make_router().choose(context(task, ACC), windows, {}, {})
        assert chosen == route(task, ACC, (0,))
        assert len([n for n in chosen if n.startswith("domain/")]) == count
        assert not any(n.startswith("gate/") for n in chosen)


def test_a_device_without_windows_still_gets_a_route():
    task = task_of(epsilon=0.0)
    chosen = make_router().choose(
        context(task, ACC), window_set.empty(task), part_of(state_of(task), task, ACC), {}
    )
    assert chosen == route(task, ACC, (0,))


def test_without_a_profile_it_is_what_the_windows_have_and_label():
    task = task_of()
    windows = windows_of(task, absent=("gyro",))  # a camera is there, and is no input
    assert profile_in(context(task), windows) == ACC
    one = replace(windows, present_BM=windows.present_BM.copy())
    one.present_BM[3, 2] = True
    assert profile_in(context(task), one).modalities == ("acc", "gyro")
    odd = Profile(("gyro", "nose", "acc"), ("speed", "taste", "label"))
    assert profile_in(context(task, odd), windows) == Profile(("acc", "gyro"), ("label", "speed"))


@pytest.mark.parametrize(
    ("families", "held"),
    [
        (["mode", "mote", "mome"], {"acc.label", "acc._shared", "_shared.label", "_shared._shared"}),
        (["mote"], {"acc.label", "acc._shared", "_shared.label", "_shared._shared"}),
        ([], {"acc._shared", "_shared.label", "_shared._shared"}),
    ],
)
def test_without_mote_and_mome_a_private_pair_has_no_expert(families, held):
    task = task_of(families=families)
    names = {n.removeprefix("expert/") for n in route(task, ACC) if n.startswith("expert/")}
    assert names == held


def test_a_device_holds_as_many_knowledge_types_as_the_paper_counts():
    """K_i = 2 |I| + 2 |O_i| + (|I| + 1)(|O_i| + 1), with the gates on top."""
    task = task_of()
    for profile in (ACC, GYRO, ALL):
        inputs, targets = len(profile.modalities), len(profile.targets)
        knowledge = 2 * inputs + 2 * targets + (inputs + 1) * (targets + 1)
        assert len(route(task, profile, (1,))) == knowledge + inputs
