"""A canary that names nobody is said at once, and not after a day of waiting."""

import contextlib
import io
import json

import pytest

from coordinator.actions.canary import doubts
from coordinator.rollout.store import RolloutStore
from lichen.cli import main
from protocol.errors import Refused
from tests.support.coordinator.bench import bench
from tests.support.coordinator.fake import tiny_task
from tests.unit.coordinator.rollout.test_rollout_staged import Devices, config, deliver

DEVICES = {"barn-1": {"site": "barn"}, "barn-2": {"site": "barn"}, "yard-1": {"site": "yard"}, "old": {}}


@pytest.mark.parametrize(
    ("canary", "words"),
    [
        ("device:bran-1", "bran-1 has never reported here (did you mean barn-1"),
        ("device:BARN-1", "BARN-1 has never reported here (did you mean barn-1?)"),
        ("device:zzz,qqq", "zzz has never reported here; qqq has never reported here"),
        ("label:site=bran", "no device says that it has the label site=bran (did you mean site=barn"),
        ("label:colour=x", "label colour=x (there are site=barn, site=yard)"),
    ],
)
def test_what_matches_nobody_is_refused_with_the_nearest_name(canary, words):
    with pytest.raises(Refused) as caught:
        doubts(canary, DEVICES, ())
    assert words in caught.value.detail
    assert f"canary {canary} matches no device" in caught.value.detail
    assert "lichen device ls" in caught.value.detail


@pytest.mark.parametrize(
    ("canary", "enrolled", "found"),
    [
        ("device:barn-1,old", (), []),
        ("label:site=yard", (), []),
        ("share:0.1", (), []),
        ("device:barn-1,bran-2", (), ["bran-2 has never reported here (did you mean barn-2"]),
        ("device:new", ("new",), ["new is enrolled, and has never reported; nobody else is in the canary"]),
        ("device:barn-1,new", ("new",), ["new is enrolled, and has never reported; it begins without"]),
        ("device:old," + ",".join(f"x{i}" for i in range(9)), (), [*["never reported"] * 5, "4 more"]),
    ],
)
def test_a_device_that_may_come_later_is_a_warning(canary, enrolled, found):
    said = doubts(canary, DEVICES, enrolled)
    assert len(said) == len(found)
    assert all(words in one for words, one in zip(found, said, strict=True)), said


def test_where_no_device_ever_reported_nothing_is_a_slip():
    assert doubts("device:a", {}, ()) == doubts("label:a=b", {}, ()) == ()


def test_labels_of_devices_are_not_obeyed_by_a_terminal():
    with pytest.raises(Refused) as caught:
        doubts("label:site=x", {"a": {"site": "\x1b[2Jbarn"}}, ())
    assert "\x1b" not in caught.value.detail


def test_a_fleet_without_labels_says_where_they_are_given():
    with pytest.raises(Refused, match=r"no device has labels \(\[labels\] in its agent.toml\)"):
        doubts("label:site=x", {"a": {}}, ())


async def test_the_command_warns_and_refuses_before_anything_is_begun(tmp_path) -> None:
    file, _ = config(tmp_path)
    async with bench(tmp_path, tiny_task(count=1, min_devices=1), rollout={"mode": "manual"}) as made:
        await Devices(made).say("barn")
        await deliver(made, ["barn"])
        await made.phase("done")

    def lichen(*words: str):
        out, error = io.StringIO(), io.StringIO()
        streams = contextlib.redirect_stdout(out), contextlib.redirect_stderr(error)
        with pytest.raises(SystemExit) as left, streams[0], streams[1]:
            main(["rollout", "create", "-c", str(file), *words])
        return left.value.code, out.getvalue(), error.getvalue()

    code, _, error = lichen("--canary", "device:bran")
    assert (code, "did you mean barn?" in error, "unknown_device" in error) == (65, True, False), error
    with RolloutStore(tmp_path / "coordinator") as book:
        assert book.course().rollout is None, "nothing was begun"
    code, out, error = lichen("--canary", "device:barn,bran", "--format", "json")
    assert (code, "lichen rollout: warning: canary: bran has never reported here" in error) == (0, True), (
        error
    )
    assert json.loads(out)["warnings"] == [error.strip().removeprefix("lichen rollout: warning: ")]
