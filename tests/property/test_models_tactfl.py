"""Whatever devices send: weights are shares, nobody is below the floor, and order decides nothing."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from models.contract import Update
from models.guided import DeviceWeights
from models.methods.tactfl.server import make_server
from models.methods.tactfl.similarity import Likeness, floored, pushed_out
from models.tensors import flatten
from protocol.frames.headers import UpdateHeader
from tests.support.methods.tactfl_cases import task as task_of

ACC = "encoder/acc"
STATE = {ACC: {f"{ACC}/w": np.zeros((2, 3), np.float32)}, "head": {"head/b": np.ones(2, np.float32)}}
config = st.fixed_dictionaries(
    {
        "weighting": st.sampled_from(["similarity", "equal", "windows"]),
        "rule": st.sampled_from(["softmax", "clamp", "literal"]),
        "sharpness": st.floats(0, 1000),
        "centre": st.booleans(),
        "floor": st.floats(0, 1),
    }
)
numbers = st.floats(width=32, allow_nan=False, allow_infinity=False)
anything = st.floats(width=32)


def views_of(values_KD, windows):
    return {
        f"d{k}": {ACC: row_D, "windows/acc": np.array([windows[k % len(windows)]], np.float32)}
        for k, row_D in enumerate(values_KD)
    }


views = st.builds(
    views_of,
    st.integers(1, 9).flatmap(lambda count: arrays(np.float32, (count, 3), elements=numbers)),
    st.lists(st.integers(1, 1000), min_size=1, max_size=4),
)


@given(views, config)
def test_weights_sum_to_one_and_none_is_below_the_floor(views, config):
    made = make_server().weigh(task_of(**config), views)
    shares = made.weights[ACC]
    assert shares.keys() == views.keys() == made.similarity[ACC].keys()
    assert abs(sum(shares.values()) - 1) < 1e-9
    assert min(shares.values()) >= config["floor"] / len(views) * (1 - 1e-12)
    if config["weighting"] == "equal":
        assert set(shares.values()) == {next(iter(shares.values()))}


@given(views, config, st.randoms(use_true_random=False))
def test_the_order_of_views_decides_nothing(views, config, random):
    shuffled = list(views.items())
    random.shuffle(shuffled)
    server, task = make_server(), task_of(**config)
    assert server.weigh(task, dict(shuffled)) == server.weigh(task, views)


@given(views, st.floats(0, 100), st.booleans(), st.randoms(use_true_random=False))
def test_names_decide_nothing(views, sharpness, centre, random):
    names = list(views)
    random.shuffle(names)
    renamed = dict(zip(views, names, strict=True))
    server, task = make_server(), task_of(sharpness=sharpness, centre=centre)
    before = server.weigh(task, views).weights[ACC]
    after = server.weigh(task, {renamed[name]: view for name, view in views.items()}).weights[ACC]
    # sums in another order may round to another ninth decimal, and sharpness multiplies that
    assert all(abs(before[name] - after[renamed[name]]) < 1e-5 for name in views)


@given(views, config)
def test_similarity_is_symmetric_between_minus_one_and_one_with_ones_on_the_diagonal(views, config):
    rows = make_server().weigh(task_of(**config), views).similarity[ACC]
    for a, row in rows.items():
        assert row[a] == 1
        assert all(-1 <= s <= 1 and s == rows[b][a] for b, s in row.items())


@given(st.integers(1, 9).flatmap(lambda n: arrays(np.float32, (n, 3), elements=anything)), config)
def test_views_that_are_not_finite_never_stop_a_round_and_never_weigh(values_KD, config):
    views = views_of(values_KD, [3])
    made = make_server().weigh(task_of(**config), views)
    finite = {f"d{k}" for k, row_D in enumerate(values_KD) if np.isfinite(row_D).all()}
    shares = made.weights[ACC]
    assert all(np.isfinite(list(shares.values())))
    assert {name for name in shares if name not in finite and shares[name] != 0} == set()
    assert abs(sum(shares.values()) - bool(finite)) < 1e-9
    assert finite == set(views) or "not folded" in " ".join(made.warnings)


@given(
    st.integers(1, 12).flatmap(lambda n: arrays(np.float64, (n, 2), elements=st.floats(-9, 9))),
    st.floats(0, 100),
    st.floats(0, 1),
)
def test_groups_are_of_two_at_least_share_nobody_and_are_light(views_KD, sharpness, floor):
    alike = Likeness.of(views_KD)
    mean_K = alike.mean_to_others()
    grown_K = np.exp(sharpness * (mean_K - mean_K.max()))
    share_K = floored(grown_K / grown_K.sum(), floor)
    groups = pushed_out(alike, share_K)
    members = [k for group in groups for k in group.devices]
    assert len(members) == len(set(members)) < len(alike) or not groups
    for group in groups:
        assert len(group.devices) > 1
        assert abs(group.weight - share_K[list(group.devices)].sum()) < 1e-9
        assert group.weight < 0.5 * group.equal == 0.5 * len(group.devices) / len(alike)
        assert group.within > group.between


@given(
    st.lists(
        st.tuples(arrays(np.float32, (2, 3), elements=st.floats(-100, 100, width=32)), st.floats(0, 1)),
        min_size=1,
        max_size=9,
    ),
    st.randoms(use_true_random=False),
    st.data(),
)
def test_a_guided_fold_agrees_to_the_bit_in_any_order_and_grouping_and_is_the_weighted_mean(
    items, random, data
):
    task, server = task_of(), make_server()
    weighing = DeviceWeights({ACC: {f"d{k}": weight for k, (_, weight) in enumerate(items)}})
    updates = [
        Update(UpdateHeader.model_construct(device=f"d{k}", weight=1), {f"{ACC}/w": x})
        for k, (x, _) in enumerate(items)
    ]

    def folded(*groups):
        folds = []
        for group in groups:
            folds.append(server.open_guided(task, 1, STATE, weighing))
            for update in group:
                folds[-1].fold(update)
        for other in folds[1:]:
            folds[0].merge(other)
        return flatten(folds[0].close())

    expected = folded(updates)
    random.shuffle(updates)
    cut = data.draw(st.integers(0, len(updates)))
    again = folded(updates[cut:], updates[:cut])
    assert {n: t.tobytes() for n, t in again.items()} == {n: t.tobytes() for n, t in expected.items()}
    assert expected["head/b"].tobytes() == STATE["head"]["head/b"].tobytes()
    total = sum(weight for _, weight in items)
    if total > 1e-2:  # below that, what integers round away shows
        mean = sum(weight / total * x.astype(np.float64) for x, weight in items)
        np.testing.assert_allclose(expected[f"{ACC}/w"], mean, atol=0.05, rtol=1e-3)
