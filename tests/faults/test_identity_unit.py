"""The broker's files, written as under the shipped unit with the shipped drop-in: the calls are filtered."""

import grp
import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from coordinator.config.coordinator import load_settings
from coordinator.identity.authority import Authority
from coordinator.identity.enrolment import EnrolmentAuthority
from tests.support.network.brokers import free_port

ROOT = Path(__file__).parents[2]
CHILD = [sys.executable, "-m", "tests.support.identity.broker_unit_child"]
CONFIG = """
fleet = "test"
state_dir = "state"
task = "task.toml"
[identity]
host = "127.0.0.1"
port = {port}
broker_dir = "{folder}"
broker_group = "{group}"
"""


@pytest.fixture
def group() -> grp.struct_group:
    """One that is not ours and that nothing can be given to without being asked for."""
    if os.geteuid() != 0:
        pytest.skip("SKIPPED LOUDLY: only root can prepare a folder of another group")
    return next(one for one in grp.getgrall() if one.gr_gid not in {0, os.getegid()})


@pytest.fixture
def config(tmp_path, group) -> Path:
    """As docs/identity.md says: the folder is made before, with the broker's group and setgid."""
    folder = tmp_path / "broker"
    folder.mkdir()
    os.chown(folder, -1, group.gr_gid)
    folder.chmod(0o2750)
    Authority.create(tmp_path / "state" / "authority", "test", ["127.0.0.1"])
    file = tmp_path / "coordinator.toml"
    file.write_text(CONFIG.format(port=free_port(), folder=folder, group=group.gr_name))
    with EnrolmentAuthority(load_settings(file)) as desk:
        desk.publish()  # lichen coordinator init, which no unit filters
    return file


def run(config: Path, *names: str, within: tuple[str, ...] = ()) -> list[dict[str, object]]:
    """Revoke devices one after the other; what the service was like after each."""
    done = subprocess.run(
        [*within, *CHILD, str(config)],
        input="".join(f"{name}\n" for name in names),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_the_unit_gives_nothing_to_a_group_and_the_broker_reads_it_all(config, group) -> None:
    said = run(config, "pi-1", "pi-2")
    assert [one["died"] for one in said] == ["", ""], said
    folder = config.parent / "broker"
    assert {"user pi-1", "user pi-2"} <= set((folder / "acl").read_text().splitlines())
    found = [path for path in folder.rglob("*") if path.name != "data"]
    assert len(found) == 7, "six files and conf.d"
    for path in found:
        assert path.stat().st_gid == group.gr_gid, path
        assert stat.S_IMODE(path.stat().st_mode) & 0o777 == (0o750 if path.is_dir() else 0o640), path
    assert stat.S_IMODE((folder / "data").stat().st_mode) & 0o777 == 0o770


def test_in_a_user_namespace_it_says_what_to_do_and_the_daemon_goes_on(config) -> None:
    """As ``PrivateUsers=yes`` without the drop-in's ``no``: the broker's group has no number there."""
    program = shutil.which("unshare")
    if program is None or subprocess.run([program, "--user", "true"], check=False).returncode != 0:
        pytest.skip("SKIPPED LOUDLY: this machine makes no user namespaces (unshare --user)")
    said = run(config, "pi-1", within=(program, "--user", "--map-root-user"))
    assert [one["died"] for one in said] == [""], said
    assert "PrivateUsers=no" in json.dumps(said)


def test_the_drop_in_keeps_the_user_namespace_away() -> None:
    lines = (ROOT / "systemd/examples/coordinator-broker.conf").read_text().splitlines()
    assert {"PrivateUsers=no", "SupplementaryGroups=mosquitto"} <= set(lines)
    assert any("-m 2750 /etc/mosquitto/lichen" in line for line in lines)
