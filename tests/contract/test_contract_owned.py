"""What a method promises whose devices own parts of the state; so far they learn from graphs."""

from dataclasses import replace

import numpy as np
import pytest

from models.contract import Blobs, LocalResult, Profile
from models.knowledge_graph.data.keyed import KeyedGraph
from models.registry import methods
from models.spec import MethodSpec
from protocol.errors import Misconfigured, Refused
from protocol.frames.tensors import Codec
from protocol.tasks.task import Task
from tests.support.methods.contract_cases import (
    OPTIONS,
    as_bytes,
    context,
    folded,
    frame_of,
    is_owned,
    material_of,
    next_state,
    received,
    served,
    task_of,
    without_second,
)
from tests.support.methods.contract_graphs import THINGS, secrets

DEVICES = ("d0", "d1", "d2")
ROUNDS = 8
OWNING = [name for name, spec in methods().items() if spec.owned]
CASES = [
    pytest.param((name, options), marks=[] if options == "defaults" else [pytest.mark.long])
    for name in OWNING
    for options in ("defaults", *OPTIONS.get(name, {}))
]
CHANCE = sum(1 / n for n in range(1, THINGS + 1)) / THINGS
"""Mean reciprocal rank of guesses."""


@pytest.fixture(scope="module", params=CASES, ids="-".join)
def case(request) -> tuple[str, str]:
    """A method, and with which options."""
    return request.param


@pytest.fixture
def spec(case) -> MethodSpec:
    return methods()[case[0]]


Life = tuple[Task, list[Blobs], list[dict[str, LocalResult]]]


@pytest.fixture(scope="module")
def life(case) -> Life:
    """Rounds of three devices: the task, the state before each and after the last, and who sent what."""
    spec = methods()[case[0]]
    task = task_of(spec, case[1])
    client, states, sent = spec.client(), [spec.client().initial(task, seed=3)], []
    private: dict = {device: {} for device in DEVICES}
    for round_ in range(1, ROUNDS + 1):
        made = {}
        for i, device in enumerate(DEVICES):
            mine = served(spec, states[-1], device)
            made[device] = client.train(
                context(task, device, round_), material(task, i), mine, private[device]
            )
            private[device] = made[device].private
        updates = [received(frame_of(task, d, material(task, i), made[d])) for i, d in enumerate(DEVICES)]
        for update in updates:
            spec.server().check(task, states[-1], update)
        states.append(next_state(spec, task, round_, states[-1], updates))
        sent.append(made)
    return task, states, sent


def material(task: Task, i: int) -> KeyedGraph:
    """Of device i, the same in every round."""
    made = material_of(task, seed=i, missing=0.3)
    assert isinstance(made, KeyedGraph)
    return made


def test_every_device_that_took_part_owns_its_parts_and_no_route_names_them(spec, life):
    task, states, _ = life
    assert not any(is_owned(spec, blob) for blob in states[0])
    wanted = {f"{part}/{device}" for part in spec.owned for device in DEVICES}
    for state in states[1:]:
        assert {blob for blob in state if is_owned(spec, blob)} == wanted
        assert {b for b in state if not is_owned(spec, b)} == set(states[0])
    route = spec.server().route(task, Profile(task.modality_names, task.target_names))
    assert not wanted & set(route)


def test_a_device_that_takes_no_part_keeps_what_it_owns(spec, life):
    task, states, sent = life
    alone = received(frame_of(task, "d1", material(task, 1), sent[-1]["d1"]))
    after = folded(spec, task, states[-2], [alone])
    before = as_bytes(states[-2])
    assert set(after) == set(before)
    moved = {name for name in before if after[name] != before[name]}
    assert any(name.split("/")[1] == "d1" for name in moved)


def test_a_state_that_cannot_be_judged_by_itself_says_so_and_names_the_task(spec, life):
    task, states, _ = life
    with pytest.raises(Misconfigured, match=f"task '{task.name}'.*{spec.name}"):
        spec.client().evaluate(task, material(task, 0), states[-1])


def test_what_is_told_of_a_device_s_model_is_finite_and_a_share(spec, life):
    _, _, sent = life
    for made in sent:
        for result in made.values():
            assert set(spec.reported) <= set(result.metrics)
            assert all(0 <= result.metrics[name] <= 1 for name in spec.reported)


def test_the_fleet_learns_what_no_device_was_told(spec, life):
    """Facts that a device keeps out of its training rank far above chance, and higher than at first."""
    _, _, sent = life
    first, last = (
        np.mean([result.metrics[spec.reported[0]] for result in made.values()])
        for made in (sent[0], sent[-1])
    )
    assert last > 2 * CHANCE
    assert last > first


@pytest.mark.parametrize("codec", [None, Codec.FLOAT32, Codec.FLOAT16])
def test_no_relation_no_feature_and_nothing_private_is_in_a_frame(life, codec):
    task, _, sent = life
    for i, device in enumerate(DEVICES):
        result = sent[-1][device]
        if codec is not None:
            result = replace(
                result,
                codecs={n: c if c is Codec.UINT8 else codec for n, c in result.codecs.items()}
                | {n: codec for n in result.tensors if n not in result.codecs},
            )
        frame = frame_of(task, device, material(task, i), result)
        assert bytes(material(task, i).entity_keys_E16[0]) not in frame  # known from the first round on
        for secret in secrets(material(task, i)):
            assert secret not in frame
        for name, tensor in result.private.items():
            assert name.encode() not in frame
            assert tensor.size < 4 or tensor.tobytes() not in frame


def test_a_graph_that_grew_or_lost_a_modality_goes_on_from_what_was_kept(spec, life):
    task, states, sent = life
    less = material(task, 0)
    fewer = replace(less, triples_N3=less.triples_N3[::2])
    for changed in (material_of(task, seed=9), without_second(less), fewer):
        result = spec.client().train(
            context(task, "d0", ROUNDS + 1), changed, served(spec, states[-1], "d0"), sent[-1]["d0"].private
        )
        update = received(frame_of(task, "d0", changed, result))
        spec.server().check(task, states[-1], update)
        assert folded(spec, task, states[-1], [update]) != as_bytes(states[-1])


def test_an_update_under_the_name_of_a_device_that_owns_nothing_yet_is_refused(spec, life):
    """What travels is told against what the sender owns in the base."""
    task, states, sent = life
    update = received(frame_of(task, "d0", material(task, 0), sent[-1]["d0"]))
    stranger = replace(update, header=update.header.model_copy(update={"device": "d9"}))
    with pytest.raises(Refused) as caught:
        spec.server().check(task, states[-2], stranger)
    assert caught.value.detail
