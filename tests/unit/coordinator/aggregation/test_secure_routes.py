"""What a masked update tells beside its attempt: of a routed method the route, checked and stored."""

from typing import Any

import pytest

from coordinator.aggregation.secure.opening import SumOpener
from models.registry import method
from protocol.errors import Refused
from protocol.secure_aggregation.updates import ATTEMPT, ROUTE, method_message
from protocol.tasks.folding import SecureAggregation
from tests.support.tasks import sensors, small_task

SECURE = SecureAggregation(identities="none")
TASK = small_task(sensors(a=(1, 20.0), b=(1, 20.0)), "ab", method="disentafl", secure_aggregation=SECURE)
MARK = "ab" * 32


@pytest.fixture
def opener() -> SumOpener:
    return SumOpener(TASK, SECURE, method(TASK.method).server())


@pytest.mark.parametrize("extra", [{}, {ROUTE: {"best": 0}}, {ROUTE: {"best": 2}}], ids=str)
def test_a_route_of_the_task_is_taken(opener: SumOpener, extra: dict[str, Any]) -> None:
    opener.check_message(extra)


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ({ROUTE: {"best": 3}}, "domain 3; the task has 0 to 2"),
        ({ROUTE: {"best": -1}}, "extra.route: best"),
        ({ROUTE: {"best": True}}, "extra.route: best"),
        ({ROUTE: {}}, "extra.route: best"),
        ({ROUTE: [0]}, "extra.route: more than"),
        ({ROUTE: None}, "extra.route: more than"),
        ({ROUTE: {"best": 0, "accuracy": 0.5}}, "extra.route: more than what determines"),
        ({ROUTE: {"best": 0}, "loss": 0.5}, "names its attempt and, of a routed method, its route alone"),
        ({"best": 0}, "names its attempt and, of a routed method, its route alone"),
    ],
    ids=str,
)
def test_what_tells_more_or_is_no_route_is_refused(
    opener: SumOpener, extra: dict[str, Any], words: str
) -> None:
    with pytest.raises(Refused, match=words):
        opener.check_message(extra)


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"best": 1, "domain": 0}, {"best": 1, "domain": 0}),
        ({}, {}),
        ({ATTEMPT: MARK, ROUTE: {"best": 1}}, {"best": 1}),
        ({ATTEMPT: MARK}, None),
        ({ATTEMPT: 3, "more": 1}, {ATTEMPT: 3, "more": 1}),
    ],
    ids=str,
)
def test_the_stored_message_is_the_methods_own(extra: dict[str, Any], message: dict[str, Any] | None) -> None:
    assert method_message(extra) == message
