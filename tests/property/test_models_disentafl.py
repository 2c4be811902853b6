"""Whatever a peer writes into a DisentAFL message, it is taken, or refused with a reason."""

from hypothesis import given, settings
from hypothesis import strategies as st

from models.contract import Update
from models.methods.disentafl.server import make_server
from protocol.errors import Refused
from tests.support.methods.disentafl_cases import ALL, header_of, state_of, task_of, update_of

TASKS = [task_of(), task_of(aggregate="kd")]
CASES = [(task, state, update_of(task, state, ALL)) for task in TASKS for state in [state_of(task)]]
WORDS = st.sampled_from(["acc", "gyro", "cam", "label", "pose", "_shared", "", "nose", "features/acc.label"])
NUMBERS = st.integers(-2, 8) | st.sampled_from([2**31, 10**30, -0.0, 0.5, 1e308, float("nan"), float("inf")])
LEAVES = st.none() | st.booleans() | NUMBERS | WORDS | st.text(max_size=4)
JSON = st.recursive(
    LEAVES, lambda of: st.lists(of, max_size=4) | st.dictionaries(WORDS | st.text(max_size=4), of, max_size=3)
)
FIELDS = st.sampled_from(["modalities", "targets", "domain", "best", "accuracy", "rows", "x"])


@settings(max_examples=150, deadline=None)
@given(case=st.sampled_from(range(len(CASES))), changes=st.dictionaries(FIELDS, JSON, min_size=1, max_size=2))
def test_any_message_is_taken_or_refused(case, changes):
    task, state, good = CASES[case]
    extra = {**good.header.extra, **changes}
    server = make_server()
    try:
        server.check(task, state, Update(header_of(task, extra), good.tensors))
    except Refused as error:
        assert error.detail  # noqa: PT017 - either outcome is right, any other exception is not
    else:
        fold = server.open(task, 1, state)
        fold.fold(Update(header_of(task, extra), good.tensors))
        assert fold.close().keys() == state.keys()
    try:
        route = server.serving_route(task, ALL, extra)
    except Refused as error:
        assert error.detail  # noqa: PT017 - as above
    else:
        assert set(route) <= set(server.route(task, ALL))
