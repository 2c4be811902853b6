"""Control messages of releases: what was said once is read for ever, and so is what a later one may say.

``messages/0.1.0``: each message as this release writes it. ``messages/later``: the same with a further key in
every object, and words that this release does not know. To add a case: ``python -m
tests.golden.test_golden_messages``; a file that is there stays as it is.
"""

import json
from pathlib import Path
from typing import Any, get_args

import pytest

from protocol.base import Wire
from protocol.errors import Reason
from protocol.log_lines import LogLine, LogLines
from protocol.messages import (
    BlobPointer,
    BlobRef,
    Command,
    Control,
    Fetch,
    Metric,
    ModalityState,
    ModelPointer,
    Offer,
    Receipt,
    RoundAnnouncement,
    State,
    Want,
    decode,
    encode,
)
from protocol.rollout import Hindrance, Trial, TrialReport
from protocol.tasks.announcement import TaskAnnouncement
from protocol.tasks.task import Modality, Task, Window

FOLDER = Path(__file__).parent / "messages"
DIGEST = "5e" * 32
BLOB = BlobRef(digest=DIGEST, size=70_000)
TASK = Task(
    name="t",
    labels=("a", "b"),
    modalities=(Modality(name="acc", channels=3, rate_hz=50.0),),
    window=Window(length_s=2.0),
)
CASES: dict[str, Wire] = {
    "state": State(
        status="online",
        device="d",
        roles=("observe", "train"),
        modalities={"acc": ModalityState(windows=(3, 4), missing=0.25, quality=0.5, reasons=("flat",))},
        targets=("label",),
        windows=7,
        model=DIGEST,
        refuses="no such sensor",
        trial=TrialReport(version=2, bundle=DIGEST, serial=3, phase="rolled_back", why="slow"),
        hindered=Hindrance(why="the disk is full", version=2, bundle=DIGEST, serial=3),
        labels={"site": "barn"},
    ),
    "task": TaskAnnouncement.of(TASK),
    "round": RoundAnnouncement(task="t", round=1, rounds=3, phase="collecting", selected=("d",), version=1),
    "offer": Offer(task="t", round=1, base=DIGEST, base_size=5, closes_in_s=3.5, graphs={"acc": BLOB}),
    "pointer": BlobPointer(task="t", round=1, blob=BLOB, chunk_bytes=65536),
    "want": Want(digest=DIGEST, missing=((0, 1), (4, 4))),
    "fetch": Fetch(digest=DIGEST, first=0, count=4, chunk_bytes=1024),
    "receipt": Receipt(task="t", round=1, digest=DIGEST, status="refused", reason=Reason.OUTLIER, detail="x"),
    "model": ModelPointer(task="t", version=1, bundle=BLOB, serial=4, trial=Trial(windows=9)),
    "command": Command(command="no_such_blob", digest=DIGEST),
    "metric": Metric(device="d", round=1, metrics={"loss": 1.5}),
    "log": LogLines(device="d", lines=(LogLine(at=5.5, level="info", text="started n=3"),), earlier=4),
}
NEW_WORDS: dict[str, dict[str, Any]] = {
    "state": {"status": "asleep", "roles": ["train", "dance"]},
    "receipt": {"status": "postponed", "reason": "too_weird"},
    "command": {"command": "dance"},
    "round": {"phase": "pondering"},
}


_MAPS = {"metrics", "labels", "graphs", "measures", "modalities"}


def later(name: str) -> bytes:
    """What a later release may say instead."""
    said = _extended(json.loads(encode(CASES[name])) | NEW_WORDS.get(name, {}))
    if name == "state":
        said["trial"]["phase"] = "wondering"
    if name == "task":
        said["task"] = json.dumps(_extended(json.loads(said["task"])))
    return json.dumps(said).encode()


def _extended(value: Any) -> Any:
    """A further key in every table (not in maps, whose keys are names)."""
    if isinstance(value, list):
        return [_extended(one) for one in value]
    if not isinstance(value, dict):
        return value
    inner = {
        key: one if key in _MAPS and isinstance(one, dict) else _extended(one) for key, one in value.items()
    }
    return {**inner, "came_later": {"in": [1, 2]}}


@pytest.mark.parametrize("name", CASES)
def test_what_a_release_said_is_still_read(name: str) -> None:
    assert decode((FOLDER / "0.1.0" / f"{name}.json").read_bytes(), Wire) == CASES[name]


@pytest.mark.parametrize("name", CASES)
def test_what_a_later_release_may_say_is_read(name: str) -> None:
    message = decode((FOLDER / "later" / f"{name}.json").read_bytes(), Wire)
    assert type(message) is type(CASES[name])
    if isinstance(message, TaskAnnouncement):
        assert message.read() == TASK
    words = json.loads(message.model_dump_json())
    assert {key: words[key] for key in NEW_WORDS.get(name, {})} == NEW_WORDS.get(name, {})


def test_every_kind_of_message_has_its_case_and_every_file_too() -> None:
    kinds = {message.model_dump()["kind"] for message in CASES.values()}
    union, *_ = get_args(Control)
    assert kinds == {model.model_fields["kind"].default for model in get_args(union)}
    files = {path.relative_to(FOLDER).as_posix() for path in FOLDER.rglob("*.json")}
    assert files == {f"{folder}/{name}.json" for folder in ("0.1.0", "later") for name in CASES}


def write() -> None:
    """Add the files that are not there."""
    for name, message in CASES.items():
        for path, data in (
            (FOLDER / "0.1.0" / f"{name}.json", encode(message)),
            (FOLDER / "later" / f"{name}.json", later(name)),
        ):
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.exists():
                path.write_bytes(data)


if __name__ == "__main__":
    write()
