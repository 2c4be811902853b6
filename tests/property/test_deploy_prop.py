"""Whatever happens in whatever order: a device has the model that passed, and its record can be read."""

from hypothesis import given
from hypothesis import strategies as st

from edge_agent.deployment.events import (
    Action,
    BundleRefused,
    Crashed,
    Damaged,
    DeploymentPhase,
    DeploymentStatus,
    DeploymentTick,
    Event,
    FetchBundle,
    Fetched,
    Loaded,
    Pointed,
    PointerRejected,
    Started,
    Stopped,
    Swap,
    Withdrawn,
)
from edge_agent.deployment.record import DeploymentRecord, InstalledBundle, reported
from edge_agent.deployment.state_machine import TABLE, apply
from edge_agent.inference.onnx_models.observation import BatchObservation
from protocol.bundle import unpack
from protocol.messages import BlobRef, ModelPointer, State, decode, encode
from protocol.rollout import Trial
from tests.support.agent.bundle import bundle
from tests.support.agent.data import toy_task
from tests.support.coordinator.trial_runner import MODEL, classes

MANIFEST = unpack(bundle(toy_task()))[0]
DIGESTS = tuple(letter * 64 for letter in "abcd")
digests = st.sampled_from(DIGESTS)
serials = st.integers(0, 6)
rules = st.builds(Trial, windows=st.integers(1, 4), max_errors=st.integers(0, 1))
models = st.builds(
    InstalledBundle, task=st.just("toy"), version=st.integers(0, 5), digest=digests, serial=serials
)
pointers = st.builds(
    lambda digest, version, serial, trial: ModelPointer(
        task="toy", version=version, bundle=BlobRef(digest=digest, size=1), serial=serial, trial=trial
    ),
    digests,
    st.integers(0, 5),
    serials,
    st.none() | rules,
)
batches = st.builds(
    lambda digest, count, error: BatchObservation(
        digest, MANIFEST, count, 0.001, error=error, answers={} if error else classes(*[0] * count)
    ),
    digests,
    st.integers(1, 3),
    st.sampled_from(["", "", "", "it died"]),
)
events = st.one_of(
    st.builds(Pointed, pointers),
    st.builds(Fetched, models, rules),
    st.just(Loaded(MODEL)),
    st.builds(BundleRefused, st.just("no")),
    st.builds(PointerRejected, models, st.just("no")),
    batches,
    st.builds(DeploymentTick, st.sampled_from([1.0, 1e6])),
    st.builds(Crashed, st.just("dead")),
    st.just(Withdrawn()),
    st.builds(Damaged, digests),
    st.just(Stopped()),
)


def restarted(status: DeploymentStatus) -> DeploymentStatus:
    """As after a power cut: what the disk has, and the first event of a life."""
    record = DeploymentRecord.model_validate_json(status.record.model_dump_json(exclude_none=True))
    assert record == status.record, "what is written is what is read"
    return apply(DeploymentStatus(record), Started(3))[0]


@given(st.lists(st.one_of(events, st.none()), max_size=40))
def test_a_committed_model_has_passed_and_only_a_commit_or_damage_replaces_it(
    happened: list[Event | None],
) -> None:
    status, passed = DeploymentStatus(DeploymentRecord()), set[str]()
    for event in happened:
        before = status
        if event is None:
            status = restarted(status)
            commands: tuple[object, ...] = ()
        else:
            status, commands = apply(status, event)
            row = TABLE.rows.get((before.phase, type(event)))
            if row is None:
                assert status is before
            else:
                assert status.phase in {phase for phase, _ in row.to}, "the table draws every step"
        record = status.record
        if Action.KEEP in commands:
            assert record.committed is not None
            passed.add(record.committed.digest)
        assert record.committed is None or record.committed.digest in passed
        if before.record.committed is not None and record.committed != before.record.committed:
            same = record.committed is not None and record.committed.digest == before.record.committed.digest
            assert same or Action.KEEP in commands or isinstance(event, Damaged)
        if Swap(MODEL) in commands:
            assert before.record.trial is not None, "the record named it before"
        if Action.LOAD in commands:
            assert Action.WRITE in commands
        if (
            before.phase is DeploymentPhase.ON_TRIAL
            and status.phase is not DeploymentPhase.ON_TRIAL
            and event is not None
        ):
            assert {Action.BACK, Action.KEEP} & set(commands), "what is over does not go on answering"
        told = reported(record)
        state = State(status="online", device="d", trial=told)
        assert decode(encode(state), State).trial == told


@given(st.lists(events, max_size=15), st.integers(0, 3))
def test_a_model_that_ends_the_agent_each_time_is_gone_after_as_many_starts_as_allowed(
    happened: list[Event], most: int
) -> None:
    status = DeploymentStatus(DeploymentRecord())
    for event in happened:
        status, _ = apply(status, event)
    for _ in range(most + 1):
        status, _ = apply(DeploymentStatus(status.record), Started(most))
    assert status.record.trial is None


@given(st.lists(events, max_size=15), pointers)
def test_a_bundle_that_was_rolled_back_is_not_pulled_again_for_the_same_decision(
    happened: list[Event], pointer: ModelPointer
) -> None:
    status = DeploymentStatus(DeploymentRecord())
    for event in happened:
        status, _ = apply(status, event)
    if status.record.failed(pointer.bundle.digest, pointer.serial) is not None:
        assert not any(isinstance(command, FetchBundle) for command in apply(status, Pointed(pointer))[1])
