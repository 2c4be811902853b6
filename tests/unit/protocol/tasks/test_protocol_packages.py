"""Packages in a task: what names them, what older devices say, and what is refused in words."""

from typing import Any

import pytest
from pydantic import ValidationError

from protocol.errors import Misconfigured, Reason, Refused
from protocol.tasks import features
from protocol.tasks.announcement import TaskAnnouncement
from protocol.tasks.task import Task
from runtime.settings.load import load_toml

PACKAGE = {"name": "radar", "version": "1.2.0", "sha256": "0" * 64}
OWN = {"encoders": {"a": {"kind": "own:mine", "width": 8, "options": {"kernel": 9}}}}


def task(network: dict[str, Any], *packages: dict[str, Any], **modality: Any) -> Task:
    one = {"name": "a", "channels": 1, "rate_hz": 5, **modality}
    values = {"name": "t", "labels": ["x", "y"], "modalities": [one], "network": network}
    return Task.model_validate({**values, "packages": packages})


@pytest.mark.parametrize("network", [OWN, {"kind": "own:mine", "options": {"layers": [1, 2]}}])
def test_a_task_with_a_package_travels_and_an_older_release_says_what_it_lacks(network, monkeypatch) -> None:
    made = task(network, PACKAGE)
    announced = TaskAnnouncement.of(made)
    assert announced.read() == made
    assert "packages" in announced.needs
    assert not any(need.startswith("encoder:own") for need in announced.needs)
    before = {name: since for name, since in features.FEATURES.items() if name != "packages"}
    monkeypatch.setattr(features, "FEATURES", before)
    with pytest.raises(Refused, match="the task needs packages, which this lichen does not know") as caught:
        announced.read()
    assert caught.value.reason is Reason.UNKNOWN_TASK


@pytest.mark.parametrize("kind", ["stream", "sound", "image", "vector", "text"])
def test_an_encoder_of_a_package_takes_any_kind_of_modality(kind) -> None:
    size = {"height": 8, "width": 8} if kind == "image" else {}
    assert task(OWN, PACKAGE, kind=kind, **size).encoder("a").kind == "own:mine"


@pytest.mark.parametrize(
    ("network", "packages", "words"),
    [
        (OWN, [], r"network\.encoders\.a\.kind: 'own:mine' is a part of a package; name it in \[\[packages"),
        ({"kind": "own:mine"}, [], r"network\.kind: 'own:mine' is a part of a package"),
        (OWN, [PACKAGE, PACKAGE], "packages: 'radar' is named twice"),
        ({"kind": "own:mine", **OWN}, [PACKAGE], "makes its encoders itself"),
        ({"encoders": {"a": {"options": {"k": 1}}}}, [PACKAGE], r"encoders\.a\.options: for a part of a pac"),
        ({"options": {"k": 1}}, [PACKAGE], r"network\.options: for a part of a package only"),
        ({"encoders": {"a": {"kind": "own:"}}}, [PACKAGE], "own:"),
        ({"encoders": {"a": {"kind": "own:../x"}}}, [PACKAGE], "own:"),
        (OWN, [{**PACKAGE, "name": "../radar"}], "name"),
        (OWN, [{**PACKAGE, "sha256": "0" * 63}], "sha256"),
        (OWN, [{**PACKAGE, "name": f"p{i}"} for i in range(5)], "at most 4"),
        ({"encoders": {"a": {"kind": "mine"}}}, [PACKAGE], "'cnn1d'"),
    ],
)
def test_what_does_not_fit_is_refused_in_words(network, packages, words) -> None:
    with pytest.raises(ValidationError, match=words):
        task(network, *packages)


def test_a_wrong_kind_in_a_task_file_is_explained_in_a_line(tmp_path) -> None:
    file = tmp_path / "task.toml"
    file.write_text(
        'name = "t"\nlabels = ["a", "b"]\n[[modalities]]\nname = "a"\nchannels = 1\nrate_hz = 5\n'
        '[network.encoders.a]\nkind = "cnn3d"\n'
    )
    with pytest.raises(Misconfigured) as caught:
        load_toml(Task, file)
    one, other = str(caught.value).splitlines()
    assert "network.encoders.a.kind: Input should be 'cnn1d', 'lstm'" in one
    assert "or 'own:NAME', where NAME is an entry point of a package (found 'cnn3d')" in other
