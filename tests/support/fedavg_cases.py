"""A small FedAvg task, a device's training and the coordinator's fold, for FedAvg's tests."""

from collections.abc import Mapping
from typing import Any

from models.contract import Blobs, ClientContext, LocalResult, Tensors, Update, WindowSet
from models.registry import method
from protocol.tasks.task import Task
from tests.support.methods import qqr_cases
from tests.support.tasks import update_header

windows, without = qqr_cases.windows, qqr_cases.without


def task(**config: Any) -> Task:
    """Two modalities, three classes, networks of a few values."""
    return qqr_cases.task(**config).model_copy(update={"method": "fedavg"})


def initial(its: Task) -> Blobs:
    return method(its.method).client().initial(its, 0)


def train(  # noqa: PLR0917 - as of a client
    its: Task,
    held: WindowSet,
    state: Blobs | None = None,
    private: Tensors | None = None,
    round_: int = 1,
    device: str = "d",
) -> LocalResult:
    client = method(its.method).client()
    context = ClientContext(its, device, round_, 7)
    return client.train(context, held, initial(its) if state is None else state, private or {})


def update(its: Task, result: LocalResult, device: str = "d", **header: Any) -> Update:
    counts = dict.fromkeys(its.modality_names, (100,) * its.classes)
    made = update_header(
        its, device, weight=result.weight, samples=20_000, extra=result.extra, counts=counts, **header
    )
    return Update(made, result.tensors)


def folded(its: Task, state: Blobs, results: Mapping[str, LocalResult]) -> Blobs:
    """The next version; every update is checked first."""
    server = method(its.method).server()
    fold = server.open(its, 1, state)
    for device, result in results.items():
        one = update(its, result, device)
        server.check(its, state, one)
        fold.fold(one)
    return fold.close()
