"""``[[tasks]]``: what a further task takes from the file, and what is its own."""

from pathlib import Path

import pytest

from coordinator.config.coordinator import CoordinatorSettings, load_settings
from coordinator.config.tasks import MAX_TASKS, own_certificate
from protocol.errors import Misconfigured

FILE = """
fleet = "barn"
state_dir = "state"
task = "walk.toml"
spread_s = 7.0

[evaluation]
data = "walk.npz"
[start]
weights = "walk.weights"
[export]
int8 = false
every_rounds = 3
[rollout]
mode = "staged"
[rollout.gates]
max_failed_share = 0.5
[metrics]
prometheus_port = 9464

[[tasks]]
name = "sound"
task = "sound.toml"
keep_versions = 9
[tasks.export]
every_rounds = 1
[tasks.rollout.gates]
min_committed_share = 0.25

[[tasks]]
name = "door"
task = "door.toml"
[tasks.evaluation]
data = "door.npz"
"""


def written(folder: Path, text: str = FILE) -> CoordinatorSettings:
    file = folder / "coordinator.toml"
    file.write_text(text, encoding="utf-8")
    return load_settings(file)


def test_a_task_has_its_own_namespace_folder_and_keys(tmp_path: Path) -> None:
    settings = written(tmp_path)

    assert settings.task_names() == ("sound", "door")
    sound = settings.for_task("sound")
    assert (sound.fleet, sound.further_task) == ("barn~sound", "sound")
    assert sound.state_dir == tmp_path / "state" / "tasks" / "sound"
    assert sound.task == tmp_path / "sound.toml"
    assert (sound.keep_versions, settings.keep_versions) == (9, 3)
    assert (sound.export.every_rounds, sound.export.int8) == (1, False)
    assert (sound.rollout.mode, sound.rollout.gates.max_failed_share) == ("staged", 0.5)
    assert sound.rollout.gates.min_committed_share == 0.25
    assert sound.spread_s == 7.0
    assert sound.metrics.prometheus_port == 0
    assert sound.location.state_dir == sound.state_dir


def test_data_and_weights_of_the_main_task_are_not_those_of_another(tmp_path: Path) -> None:
    settings = written(tmp_path)

    assert settings.evaluation.data == tmp_path / "walk.npz"
    assert settings.for_task("sound").evaluation.data is None
    assert settings.for_task("sound").start.weights is None
    assert settings.for_task("door").evaluation.data == tmp_path / "door.npz"


def test_the_main_task_is_the_file_itself(tmp_path: Path) -> None:
    settings = written(tmp_path)

    assert settings.for_task(None) is settings
    assert settings.main is settings
    assert settings.further_task is None
    door = settings.for_task("door")
    assert door.main is settings
    assert door.for_task("sound") == settings.for_task("sound")
    assert door.for_task(None) is settings


def test_a_file_without_tasks_is_what_it_was(tmp_path: Path) -> None:
    settings = written(tmp_path, FILE[: FILE.index("[[tasks]]")])

    assert settings.task_names() == ()
    with pytest.raises(Misconfigured, match=r"'sound'.*no \[\[tasks\]\]"):
        settings.for_task("sound")


def test_an_unknown_name_is_refused_with_those_that_are_known(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match=r"'doors' is not in .*sound, door, and the main task"):
        written(tmp_path).for_task("doors")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (FILE.replace('name = "door"', 'name = "sound"'), "'sound'"),
        (FILE.replace('name = "door"', 'name = "a~b"'), "a~b"),
        (FILE.replace('name = "door"', 'name = ".."'), "name"),
        (FILE.replace('name = "door"', f'name = "{"x" * 41}"'), "name"),
        (FILE.replace("keep_versions", "fleet"), "fleet"),
        (
            FILE + "".join(f'[[tasks]]\nname = "t{n}"\ntask = "t.toml"\n' for n in range(MAX_TASKS - 1)),
            str(MAX_TASKS),
        ),
    ],
    ids=["twice", "tilde", "dots", "long", "not_of_a_task", "too_many"],
)
def test_wrong_tables_are_refused_by_key(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(Misconfigured, match="tasks") as error:
        written(tmp_path, text)
    assert words in str(error.value)
    assert "coordinator.toml" in str(error.value)


def test_tables_and_blobs_elsewhere_are_its_own(tmp_path: Path) -> None:
    storage = '[storage]\nurl = "postgresql://lichen@db/lichen"\nblobs = "s3://fleet/a?region=eu"\n'
    settings = written(tmp_path, FILE + storage)

    names = [settings.schema_name, *(settings.for_task(name).schema_name for name in settings.task_names())]
    assert names == ["lichen_barn", "lichen_barn~sound~", "lichen_barn~door~"]
    assert settings.for_task("sound").storage.blobs == "s3://fleet/a/tasks/sound?region=eu"
    plain = settings.model_copy(
        update={"storage": settings.storage.model_copy(update={"blobs": "s3://fleet"})}
    )
    assert plain.for_task("sound").storage.blobs == "s3://fleet/tasks/sound"


def test_a_certificate_of_the_authority_is_its_own(tmp_path: Path) -> None:
    tls = '[mqtt.tls]\nca_file = "state/identity/ca.pem"\n' + "".join(
        f'{key} = "state/identity/coordinator.pem"\n' for key in ("cert_file", "key_file")
    )
    found = written(tmp_path, FILE + tls).for_task("sound").mqtt.tls
    other = written(tmp_path, FILE + tls.replace("coordinator.pem", "mine.pem")).for_task("sound").mqtt.tls

    assert found is not None
    assert found.cert_file == found.key_file == own_certificate(tmp_path / "state", "sound")
    assert found.ca_file == tmp_path / "state" / "identity" / "ca.pem"
    assert other is not None
    assert other.cert_file == tmp_path / "state" / "identity" / "mine.pem"
