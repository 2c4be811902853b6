"""What the coordinator asks of devices that learn without labels: windows, and modalities to cover."""

import pytest

from coordinator.fleet.device_registry import DeviceRegistry
from coordinator.fleet.requirements import Requirements, requirements_of
from coordinator.round_machine.commands import Select
from coordinator.round_machine.events import RoundPhase, RoundState, Rules
from coordinator.rounds.outlook import fleet_status
from coordinator.selection.policies import SelectionInput, policy
from coordinator.selection.selector import DeviceSelector
from coordinator.status.prometheus import _Collector
from coordinator.storage.database import Database
from lichen_lab.simulation.training.selection import Choice
from protocol.messages import ModalityState, State
from tests.support.coordinator.bench import bench
from tests.support.coordinator.fake import tiny_task
from tests.support.tasks import update_header

TASK = tiny_task(devices_per_round=2).model_copy(update={"method": "tactfl"})
TERMS = requirements_of(TASK, "")


def state(device: str, windows: int = 40, **missing: float) -> State:
    """A device that has these modalities, each missing from a share of its windows."""
    known = {name: ModalityState(windows=(0, 0), missing=share) for name, share in missing.items()}
    return State(status="online", device=device, roles=("train",), modalities=known, windows=windows)


def test_a_device_is_able_by_its_windows_and_the_words_say_so() -> None:
    terms = Requirements(32, needs_labels=False)
    assert terms.lacks(state("a", 32, acc=0.0)) == ""
    assert terms.lacks(state("a", 31, acc=0.0)) == "31 of 32 windows"
    assert Requirements(32).lacks(state("a", 31, acc=0.0)) == "31 of 32 labelled windows"
    assert not TERMS.needs_labels
    assert requirements_of(TASK.model_copy(update={"method": "qqr"}), "").needs_labels
    assert requirements_of(tiny_task(), "").needs_labels, "a method that is not known here"


def test_a_device_that_only_sends_prototypes_still_needs_labels() -> None:
    terms = Requirements(32, ("acc",), no_prototypes="", needs_labels=False)
    given = state("a", 5, acc=0.0).model_copy(update={"roles": ("prototype",)})
    assert terms.lacks(given) == "5 of 32 labelled windows"


@pytest.fixture
def roster(tmp_path):
    with Database(tmp_path / "c.sqlite3") as store:
        made = DeviceRegistry(store, lambda: 0.0)
        made.store = store
        yield made


def test_selection_waits_for_no_labelled_window(roster) -> None:
    roster.update(state("full", acc=0.0))
    roster.update(state("young", 3, acc=0.0))
    terms = Requirements(32, needs_labels=False)
    seen = fleet_status(roster, RoundState(phase=RoundPhase.WAITING), terms, lambda _: None)
    assert seen.able == {"full"}
    assert seen.lacks == {"young": "3 of 32 windows"}


async def test_the_coverage_that_prometheus_shows_counts_windows_without_labels(tmp_path) -> None:
    async with bench(tmp_path, TASK) as made:
        made.app.roster.update(state("a", acc=0.0, gyro=1.0))
        made.app.roster.update(state("b", acc=0.5))
        [family] = [one for one in _Collector(made.app.measured).collect() if one.name == "lichen_coverage"]
    found = {(s.labels["modality"], s.labels["label"]): s.value for s in family.samples}
    assert found == {("acc", ""): 2.0, ("gyro", ""): 0.0}


async def test_modalities_are_covered_where_there_are_no_classes(roster) -> None:
    for n in range(12):
        roster.update(state(f"d{n:02}", acc=0.0, gyro=1.0))
    roster.update(state("rare", acc=0.5, gyro=0.9, nose=0.0))
    assert roster.windows_by_modality("rare") == {"acc": (20,), "gyro": (4,), "nose": (40,)}
    assert roster.windows_by_modality("d00") == {"acc": (40,), "gyro": (0,)}, "declared, and never delivered"
    chooser = DeviceSelector(TASK, Rules.of(TASK), roster, roster.store, lambda _: ())
    for round_ in range(1, 9):
        asked = Select(round=round_, attempt=1)
        chosen = await chooser.choose(asked, roster.online(), RoundState(), TERMS)
        assert "rare" in chosen.devices
        assert len(chosen.devices) == 2
        assert chosen.why["rare"].startswith("covers ")
        assert "gyro" in chosen.why["rare"]
        assert " x " not in " ".join(chosen.why.values()), "modalities, and no classes"


def test_a_simulation_covers_modalities_alike() -> None:
    names = [f"d{n:02}" for n in range(12)]
    choice = Choice(TASK, names, names, seed=0)
    for name in names:
        missing = {"acc": 0.0, "gyro": 0.0 if name == "d07" else 1.0}
        header = update_header(
            TASK, name, samples=40, counts={"acc": (0, 0), "gyro": (0, 0)}, missing=missing
        )
        choice.accept(1, header, ())
    assert all("d07" in choice.of(round_) for round_ in range(2, 10))


def test_the_words_of_a_cover_name_modalities_alone() -> None:
    candidates = {f"d{n}": {"acc": (5,)} for n in range(4)} | {"both": {"acc": (1,), "gyro": (1,)}}
    chosen = policy("coverage").choose(SelectionInput(candidates, 1, 0))
    assert chosen.why == {"both": "covers acc, gyro"}
