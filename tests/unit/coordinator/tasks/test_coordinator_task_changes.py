"""What a new reading of the file changes: a table."""

from pathlib import Path

import pytest

from coordinator.config.coordinator import CoordinatorSettings
from coordinator.tasks.changes import Changes, changes, main_differs, read_wanted, require_same_place
from protocol.errors import Misconfigured

TASKS = ("sound", "door", "heart")


def read(folder: Path, *tasks: dict[str, object], **keys: object) -> CoordinatorSettings:
    base = {"fleet": "barn", "state_dir": folder / "state", "task": folder / "walk.toml", "tasks": tasks}
    return CoordinatorSettings.model_validate(base | keys)


def one(folder: Path, name: str, **keys: object) -> dict[str, object]:
    return {"name": name, "task": folder / f"{name}.toml", **keys}


@pytest.mark.parametrize(
    ("before", "after", "todo"),
    [
        ((), (), Changes()),
        (("sound",), ("sound",), Changes()),
        ((), ("sound", "door"), Changes(start=("sound", "door"))),
        (("sound", "door"), ("door",), Changes(end=("sound",))),
        (("sound", "door"), ("door", "sound"), Changes()),
        (("sound", "door"), ("heart", "door"), Changes(start=("heart",), end=("sound",))),
        (("sound", "door"), (), Changes(end=("sound", "door"))),
    ],
)
def test_tasks_start_and_end(
    tmp_path: Path, before: tuple[str, ...], after: tuple[str, ...], todo: Changes
) -> None:
    first = read(tmp_path, *(one(tmp_path, name) for name in before))
    second = read(tmp_path, *(one(tmp_path, name) for name in after))

    assert changes(read_wanted(first), read_wanted(second)) == todo


def test_a_task_begins_again_with_other_keys_or_another_task_file(tmp_path: Path) -> None:
    for name in TASKS:
        (tmp_path / f"{name}.toml").write_text("name = 'a'")
    first = read_wanted(read(tmp_path, *(one(tmp_path, name) for name in TASKS)))

    (tmp_path / "door.toml").write_text("name = 'b'")
    other = one(tmp_path, "heart", keep_versions=9)
    second = read_wanted(read(tmp_path, one(tmp_path, "sound"), one(tmp_path, "door"), other))

    assert changes(first, second) == Changes(restart=("door", "heart"))


def test_a_key_of_the_whole_fleet_counts_for_further_tasks_and_is_said_of_the_main_task(
    tmp_path: Path,
) -> None:
    first, second = read(tmp_path, one(tmp_path, "sound")), read(tmp_path, one(tmp_path, "sound"), spread_s=9)

    assert changes(read_wanted(first), read_wanted(second)) == Changes(restart=("sound",))
    assert main_differs(first, second)
    assert not main_differs(first, read(tmp_path, one(tmp_path, "door")))


@pytest.mark.parametrize(
    ("key", "value"), [("fleet", "byre"), ("state_dir", "elsewhere"), ("storage", {"blobs": "s3://other"})]
)
def test_a_file_of_another_place_is_refused_as_a_whole(tmp_path: Path, key: str, value: object) -> None:
    with pytest.raises(Misconfigured, match=f"{key}: changed .* restart the coordinator"):
        require_same_place(read(tmp_path), read(tmp_path, **{key: value}))
