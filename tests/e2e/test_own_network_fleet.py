"""Real daemons and Mosquitto: the example package in a wheel of its own on two of three devices."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edge_agent.windows.window_sets import windows_of_recording
from models import package_files
from models.data.streams.recording import read
from protocol.bundle import unpack
from protocol.tasks.network import Package
from tests.e2e.test_prototype_fleet import ONE_THREAD, REST, WALK, WAVE, Gestures, recall, record, task_of
from tests.support.own_package import EXAMPLE, NAME, importable, with_own

pytestmark = [pytest.mark.long, pytest.mark.mosquitto]
ROUNDS, CLASSES = 6, (REST, WALK, WAVE)


def wheel_installed(folder: Path, version: str) -> Path:
    """Build a wheel of the example as a user does, and install it into a folder; returns the folder."""
    source, site = folder / f"source-{version}", folder / f"site-{version}"
    source.mkdir(parents=True)
    for file in (EXAMPLE, EXAMPLE.with_name("pyproject.toml")):
        (source / file.name).write_text(
            file.read_text().replace('version = "1.2.0"', f'version = "{version}"')
        )
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    alone = ["--no-deps", "--no-index"]
    for command in (
        ["wheel", *alone, "--no-build-isolation", "--wheel-dir", str(source / "wheels"), str(source)],
        [
            "install",
            *alone,
            "--target",
            str(site),
            "--find-links",
            str(source / "wheels"),
            f"{NAME}=={version}",
        ],
    ):
        subprocess.run([*pip, *command], check=True, timeout=300, capture_output=True)
    return site


@pytest.fixture(scope="module")
def sites(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("packages")
    return {version: wheel_installed(folder, version) for version in ("1.2.0", "1.1.0")}


@pytest.fixture
def package(sites) -> Iterator[Package]:
    with importable(sites["1.2.0"]):
        yield package_files.find_package(NAME).package


class Fleet(Gestures):
    """Whose devices have packages."""

    def device(self, name: str, seed: int, site: Path, **tables: Any) -> None:
        file = record(self.root / f"{name}.npz", CLASSES, seed)
        self.agent(
            name,
            file,
            speed=40,
            env={**ONE_THREAD, "PYTHONPATH": str(site)},
            infer={"output": str(self.predictions(name))},
            source=[{"kind": "replay", "file": str(file), "speed": 20, "loop": True}],
            state_every_s=1.0,
            **tables,
        )

    def predictions(self, name: str) -> Path:
        return self.root / f"{name}.jsonl"

    def predicts_with(self, name: str) -> set[int]:
        """Versions whose predictions a device wrote."""
        file = self.predictions(name)
        lines = file.read_text().splitlines() if file.is_file() else []
        return {json.loads(line)["version"] for line in lines if line.endswith("}")}


def test_two_devices_learn_with_their_owners_network_and_the_third_says_why_it_does_not(
    sites, package, broker
) -> None:
    task = with_own(task_of(ROUNDS, 2), package, kernel=5)
    allow = {"allow": [NAME]}
    right, old = sites["1.2.0"], sites["1.1.0"]
    with Fleet(task, broker.port) as fleet:
        held_out = record(fleet.root / "held_out.npz", CLASSES, 99, 120.0)
        fleet.coordinator(
            {**ONE_THREAD, "PYTHONPATH": str(right)}, spread_s=0.5, export={"every_rounds": 0}, packages=allow
        )
        fleet.device("left", 1, right, packages=allow)
        fleet.device("right", 2, right, packages=allow)
        fleet.device("old", 3, old, packages=allow)
        fleet.until(lambda: "lichen-example-net 1.2.0; 1.1.0 is installed" in fleet.said("old"), 60, "words")
        fleet.until(lambda: fleet.has(ROUNDS), 400, "rounds of the two, and a bundle that passed its gate")
        found = fleet.history()
        assert [one["devices"] for one in found["versions"][1:]] == [["left", "right"]] * ROUNDS
        assert found["refusals"] == []
        fleet.until(
            lambda: all(ROUNDS in fleet.predicts_with(name) for name in ("left", "right")), 120, "rolled out"
        )
        assert not fleet.predicts_with("old")
        bundle = fleet.bundle(ROUNDS)
        manifest, _ = unpack(bundle)
        assert manifest.parity
        windows = windows_of_recording(task, read(held_out))
        assert min(recall(bundle, windows, label) for label in CLASSES) >= 0.7
        for name in ("left", "coordinator"):
            maps = Path(f"/proc/{fleet.pid(name)}/maps").read_text()
            assert "libtorch" not in maps, "a daemon imports neither torch nor the package"
