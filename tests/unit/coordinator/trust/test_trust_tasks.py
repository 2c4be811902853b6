"""The tasks of a fleet have one root and key; what is signed for one of them is refused in another."""

import time
from pathlib import Path

import pytest

from coordinator.trust import root_ceremony
from coordinator.trust.keys import Key
from coordinator.trust.repository import DAY_S, BundleTarget, Repository
from coordinator.trust.signer import PointerSigner, pointer_signer_of, repository_of
from protocol.errors import Refused
from protocol.frames.frame import digest
from protocol.messages import BlobRef, ModelPointer
from protocol.trust.decisions import read_decision, require_for
from runtime.clock import SystemClock
from runtime.storage.blob_store import BlobStore
from tests.support.coordinator.fake import settings_for

REF = BlobRef(digest=digest(b"one"), size=3)
POINTER = ModelPointer(task="tiny", version=1, bundle=REF, serial=1)


def signer_of(folder: Path, name: str | None) -> PointerSigner:
    settings = settings_for(
        folder, 1, tasks=[{"name": one, "task": folder / "t.toml"} for one in ("sound", "door")]
    ).for_task(name)
    return pointer_signer_of(settings, BlobStore(settings.state_dir / "blobs"), SystemClock())


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    made = repository_of(settings_for(tmp_path, 1))
    root_ceremony.init(made, [Key.new()], 1, 365 * DAY_S, time.time())
    return made


def test_a_decision_of_one_task_is_refused_in_the_others(tmp_path: Path, repository: Repository) -> None:
    spaces = {None: "test", "sound": "test~sound", "door": "test~door"}
    for name, own in spaces.items():
        made = signer_of(tmp_path, name).vouched(
            POINTER, [BundleTarget(task="tiny", version=1, ref=REF)], device="barn-1"
        )
        assert made.decision is not None
        decision, envelope = read_decision(made.decision)
        assert envelope.signers(repository.root().keys_of("targets")), "the fleet's one key"
        require_for(decision, made, own, "barn-1")
        for other in spaces.values():
            if other != own:
                with pytest.raises(Refused, match="fleet"):
                    require_for(decision, made, other, "barn-1")


def test_each_task_publishes_metadata_of_its_own_bundles(tmp_path: Path, repository: Repository) -> None:
    state = repository.folder.parent
    for name in (None, "sound"):
        version = 1 if name is None else 2
        target = BundleTarget(task="tiny", version=version, ref=REF)
        signer_of(tmp_path, name).vouched(POINTER.model_copy(update={"version": version}), [target])

    main = (state / "trust/published.json").read_text()
    sound = (state / "tasks/sound/trust/published.json").read_text()
    assert "tiny/1/" in main
    assert "tiny/1/" not in sound
    assert not list((state / "tasks/sound/trust").glob("*.pem")), "the key stays where it is"
    assert not (state / "tasks/sound/trust/keys").exists()
