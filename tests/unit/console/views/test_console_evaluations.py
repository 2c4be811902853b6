"""The page of a version on devices: the sums beside the coordinator's own metrics, and pages of devices."""

import pytest

from coordinator.evaluations import store as evaluations
from protocol.tasks.evaluation import DeviceEvaluation
from tests.support.console.history import History, settings_in
from tests.support.console.serving import served

DEVICES = 60


def report(version: int, task, wrong: int) -> DeviceEvaluation:
    cells = ((0, 0, 20 - wrong), (1, 0, wrong)) if wrong else ((0, 0, 20),)
    part = {"modalities": task.input_names[:1], "windows": 20, "confusion": {"label": cells}}
    found = {"version": version, "bundle": "b" * 64, "windows": 20, "parts": [part]}
    return DeviceEvaluation.model_validate(found)


@pytest.mark.both_engines
async def test_console_a_version_on_devices_shows_sums_and_pages_of_devices(tmp_path) -> None:
    settings = settings_in(tmp_path)
    with History(settings) as history:
        history.makes(0)
        history.plays(1, ["a", "b"])
        task = history.task
        given = {(1, f"d{n:03}"): (1.0, report(1, task, n % 2)) for n in range(DEVICES)}
        assert evaluations.write(history.store, task, given, 1000) == DEVICES
    async with served(settings) as made:
        one = await made.json("/versions/1/evaluation")
        assert (one["devices"], one["windows"], one["pages"]) == (DEVICES, 20 * DEVICES, 2)
        assert one["targets"]["label"]["accuracy"] == pytest.approx(1 - DEVICES / 2 / (20 * DEVICES))
        assert one["own"]["accuracy"] == pytest.approx(2 / 3)
        assert [row["device"] for row in one["of_devices"]] == [f"d{n:03}" for n in range(50)]
        second = await made.json("/versions/1/evaluation?page=2")
        assert [row["device"] for row in second["of_devices"]] == [f"d{n:03}" for n in range(50, DEVICES)]
        page = await made.page("/versions/1/evaluation")
        assert "the coordinator&#39;s own: 0.667" in page or "the coordinator's own: 0.667" in page
        assert "51 to 60" not in page
        assert "51 to 60" in await made.page("/versions/1/evaluation?page=2")
        assert 'href="/versions/1/evaluation"' in await made.page("/versions/1")
        assert "No device has evaluated version 0 yet" in await made.page("/versions/0/evaluation")
        assert (await made.json("/versions/0/evaluation"))["devices"] == 0
        assert "version 9 is not in the history" in await made.page("/versions/9/evaluation", 404)
