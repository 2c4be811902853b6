"""install.sh upgrades over a step of the tables, and goes back, on the state folders of a fleet in use."""

import os
import shutil
import sqlite3
import subprocess
import tomllib
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from coordinator.storage import schema
from lichen_lab.simulation.processes.fleet_files import write_toml
from tests.compat.fleet import Fleet
from tests.compat.trees import ROOT, Tree, made_up, today
from tests.support.network.brokers import mosquitto_process

pytestmark = pytest.mark.mosquitto
# In place of `python -m venv FOLDER`: its `lichen` is that of a source tree, and its pip installs nothing.
_PYTHON = """#!/bin/sh
[ "$1" != -c ] || { echo True; exit; }
mkdir -p "$3/bin"
printf '#!/bin/sh\\n' >"$3/bin/pip"
printf '#!/bin/sh\\nPYTHONPATH=%s exec %s -P -m lichen "$@"\\n' "$TREE" "$PYTHON" >"$3/bin/lichen"
chmod +x "$3/bin/pip" "$3/bin/lichen"
"""


@dataclass(frozen=True)
class Machine:
    """One below a folder, as install.sh lays it."""

    root: Path

    def install(self, *words: str, tree: Tree | None = None) -> str:
        """Run install.sh; ``tree``: what is in the wheel."""
        python, wheel = (
            self.root.parent / "python",
            self.root.parent / f"lichen-{tree and tree.name}-py3-none-any.whl",
        )
        python.write_text(_PYTHON)
        python.chmod(0o755)
        wheel.write_text(str(tree))
        given = () if tree is None else ("--python", str(python), "--wheel", str(wheel))
        done = subprocess.run(
            ["sh", str(ROOT / "install/install.sh"), "--root", str(self.root), *given, *words],
            env={**os.environ, "TREE": str(tree and tree.folder), "PYTHON": today().python},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    @property
    def state(self) -> Path:
        """Of the coordinator."""
        return self.root / "var/lib/lichen-coordinator"

    @property
    def lichen(self) -> Tree:
        """What is in use now."""
        return Installed("installed", self.root)


class Installed(Tree):
    """By the command that install.sh put in place."""

    def command(self, *words: str) -> list[str]:
        """``lichen`` of the version in use."""
        return [str(self.folder / "opt/lichen/current/bin/lichen"), *words]

    @property
    def environment(self) -> dict[str, str]:
        """As a unit has it."""
        return {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}


def settled_in(fleet: Fleet, machine: Machine) -> Path:
    """The coordinator's configuration, where install.sh looks for it."""
    config = fleet.layout.config("coordinator")
    settings = tomllib.loads(config.read_text()) | {
        "state_dir": str(machine.root / "var/lib/lichen-coordinator")
    }
    write_toml(config, settings)
    shutil.copyfile(config, machine.root / "etc/lichen/coordinator.toml")
    return config


@pytest.mark.long
async def test_an_upgrade_over_a_step_of_the_tables_and_back_on_a_state_folder_in_use(tmp_path: Path) -> None:
    machine, now = Machine(tmp_path / "machine"), today()
    later = made_up(tmp_path / "next", readable_from=schema.VERSION + 1)
    machine.install("--agent", "--coordinator", tree=now)
    broker = mosquitto_process(tmp_path / "broker").start()
    fleet = Fleet(tmp_path / "fleet", broker.port)
    config = settled_in(fleet, machine)
    try:
        for tree, words in ((now, ()), (later, ("--agent", "--coordinator")), (None, ("--rollback",))):
            if tree is not now:
                said = machine.install(*words, tree=tree)
            before = fleet.version
            async with fleet.running(machine.lichen, {"d2": machine.lichen}):
                await fleet.until(lambda before=before: fleet.version > before)
            if tree is later:
                refused = Tree("before", ROOT).run("coordinator", "check", "--config", str(config), status=78)
                assert f"coordinator.sqlite3.v{schema.VERSION}: lichen coordinator downgrade" in refused
    finally:
        broker.stop()
    assert f"coordinator.sqlite3: as of coordinator.sqlite3.v{schema.VERSION} again" in said
    history, status = fleet.history(machine.lichen), fleet.status("d2")
    assert "is gone" in history["salvaged"]
    assert (history["task"], history["refusals"]) == (fleet.task.name, [])
    assert (status["outbox"]["waiting"], status["outbox"]["refused"]) == (0, 0)
    with closing(sqlite3.connect(machine.state / "coordinator.sqlite3")) as database:
        made = database.execute("SELECT version, manifest, parent FROM versions ORDER BY version").fetchall()
    assert [version for version, *_ in made] == list(range(fleet.version + 1)), (
        "those of the newer release too"
    )
    assert [parent for *_, parent in made[1:]] == [manifest for _, manifest, _ in made[:-1]]
