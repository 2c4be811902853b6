"""Which classes the fleet has trained on, and what is taken from a device that only has prototypes."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from models.contract import Blobs, ClientContext, Profile, Update
from models.data import window_set
from models.methods.qqr.client import make_client
from models.methods.qqr.messages import PrototypeRows, QqrMessage
from models.methods.qqr.prototyper import make_prototyper
from models.methods.qqr.prototypes import TRAINED_NAME, fresh_classes, trained, values_name
from models.methods.qqr.server import make_server
from models.tensors import flatten
from protocol.errors import Reason, Refused
from tests.support.methods import qqr_cases as cases
from tests.support.tasks import update_header

ACC = values_name("acc")


def update(task, windows, result, device="d") -> Update:
    counts = window_set.counts(windows, task)
    header = update_header(task, device, samples=len(windows), counts=counts, extra=result.extra)
    return Update(header, result.tensors)


def of_classes(*classes: int, count: int = 12):
    windows = cases.windows(count)
    return replace(windows, y_B=np.array([classes[i % len(classes)] for i in range(count)]))


def trainer(task, state, *classes: int) -> Update:
    return update(task, of_classes(*classes), cases.train(task, of_classes(*classes), state))


def teacher(task, *classes: int, count: int = 12) -> Update:
    windows, rng = of_classes(*classes, count=count), np.random.default_rng(len(classes))
    z = {name: rng.normal(size=(count, 4)).astype(np.float32) for name in task.modality_names}
    made = make_prototyper().summarise(ClientContext(task, "p", 1, 0), windows, z, {})
    return update(task, windows, made, "p")


def closed(task, state: Blobs, updates) -> Blobs:
    fold = make_server().open(task, 1, state)
    for one in updates:
        fold.fold(one)
    return fold.close()


@pytest.fixture(scope="module")
def task():
    return cases.task()


@pytest.fixture(scope="module")
def state(task) -> Blobs:
    return make_client().initial(task, 0)


def test_a_fresh_state_has_trained_nothing_and_keeps_that_to_itself(task, state) -> None:
    assert trained(state).tolist() == [0, 0, 0]
    assert trained(fresh_classes(task)).dtype == np.float32
    assert "classes" not in make_server().route(task, Profile(task.modality_names))


def test_classes_are_counted_once_a_round_and_only_of_devices_that_train(task, state) -> None:
    updates = [trainer(task, state, 0), trainer(task, state, 0, 1), teacher(task, 1, 2)]
    first = closed(task, state, updates)
    assert trained(first).tolist() == [1, 1, 0]
    second = closed(task, first, [trainer(task, first, 1), teacher(task, 2)])
    assert trained(second).tolist() == [1, 2, 0]
    assert trained(closed(task, second, [teacher(task, 0, 1, 2)])).tolist() == [1, 2, 0]
    assert trained(closed(task, second, [])).tolist() == [1, 2, 0]
    assert trained(state).tolist() == [0, 0, 0]  # the base is not written to


def test_order_and_grouping_do_not_matter(task, state) -> None:
    updates = [trainer(task, state, 0), trainer(task, state, 1), teacher(task, 2)]
    want = {name: t.tobytes() for name, t in flatten(closed(task, state, updates)).items()}
    for order in itertools.permutations(updates):
        for cut in (1, 2):
            left, right = (make_server().open(task, 1, state) for _ in range(2))
            for i, one in enumerate(order):
                (left if i < cut else right).fold(one)
            left.merge(right)
            assert {n: t.tobytes() for n, t in flatten(left.close()).items()} == want


def test_a_state_of_an_older_version_goes_on_as_it_is(task, state) -> None:
    old = {name: blob for name, blob in state.items() if name != "classes"}
    assert trained(old) is None
    server, one = make_server(), trainer(task, old, 0)
    server.check(task, old, one)
    after = closed(task, old, [one, teacher(task, 2)])
    assert after.keys() == old.keys()
    model = make_client().inference_model(task, after)
    assert not model.may_be_novel
    assert make_client().inference_model(task, state).may_be_novel


def test_no_device_may_say_what_has_been_trained(task, state) -> None:
    good = trainer(task, state, 0)
    stray = good.tensors | {TRAINED_NAME: np.ones(3, np.float32)}
    with pytest.raises(Refused, match=r"classes/trained.*not in the model"):
        make_server().check(task, state, Update(good.header, stray))


@pytest.mark.parametrize("upload", ["model+prototypes", "prototypes"])
def test_prototypes_alone_are_taken_whatever_the_upload(state, upload) -> None:
    task = cases.task(upload=upload)
    make_server().check(task, state, teacher(task, 2))


def test_a_model_is_refused_where_only_prototypes_travel(task, state) -> None:
    with pytest.raises(Refused, match=r"tensor 'encoder/acc/.*upload = \"prototypes\"") as caught:
        make_server().check(cases.task(upload="prototypes"), state, trainer(task, state, 0))
    assert caught.value.reason is Reason.WRONG_TENSORS


def changed(good: Update, **fields) -> Update:
    rows = QqrMessage.model_validate(good.header.extra).prototypes
    rows = rows | {"acc": PrototypeRows(**(rows["acc"].model_dump() | fields))}
    extra = QqrMessage(prototypes=rows).extra()
    return Update(good.header.model_copy(update={"extra": extra}), good.tensors)


def test_absurd_counts_are_refused(task, state) -> None:
    good, server = teacher(task, 1, 2), make_server()
    server.check(task, state, good)
    with pytest.raises(Refused, match=r"class 2 made from 7 windows, but header\.counts\.acc has 6"):
        server.check(task, state, changed(good, counts=(6, 7)))
    with pytest.raises(Refused, match="class 3 of 3"):
        server.check(task, state, changed(good, classes=(1, 3)))
    huge = good.header.model_copy(update={"counts": {"acc": (0, 6, 10**9), "gyro": (0, 6, 6)}})
    with pytest.raises(Refused, match=r"header\.counts\.acc"):
        server.check(task, state, Update(huge, good.tensors))


@pytest.mark.parametrize(("trim", "least"), [(0.0, 5), (0.2, 4), (0.9, 1)])
def test_a_prototype_of_too_few_windows_is_refused(state, trim, least) -> None:
    task = cases.task(min_count=5, prototype_trim=trim)
    server, good = (
        make_server(),
        teacher(task, 1, 2, count=10),
    )  # five windows of each: the least that make one
    server.check(task, state, good)
    assert good.header.extra["prototypes"]["acc"]["counts"] == [least, least]
    if least > 1:
        with pytest.raises(Refused, match=f"made from {least - 1} windows.*at least {least}"):
            server.check(task, state, changed(good, counts=(least - 1, least)))


@pytest.mark.parametrize(
    "config", [{}, {"normalise": False, "prototype_clip": 2.0}], ids=["scaled", "clipped"]
)
def test_a_prototype_longer_than_any_feature_is_refused(state, config) -> None:
    task = cases.task(prototype_bits=32, **config)
    server, good = make_server(), teacher(task, 1, 2)
    server.check(task, state, good)
    most = 8.0 if not config else 2.0
    row_D = np.full(4, most * 0.51, np.float32)  # each value is small enough, the whole is too long
    longer = good.tensors | {ACC: np.stack([row_D, good.tensors[ACC][1]])}
    with pytest.raises(Refused, match="length") as caught:
        server.check(task, state, Update(good.header, longer))
    assert ACC in caught.value.detail
