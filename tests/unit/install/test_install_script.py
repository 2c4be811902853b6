"""install.sh below a folder: what it lays where, what it leaves alone, and how it says no."""

import os
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from coordinator.config.coordinator import load_settings
from coordinator.task import load_task
from edge_agent.config.agent import read

ROOT = Path(__file__).parents[3]
SCRIPT = ROOT / "install" / "install.sh"


def run(*words: str, status: int = 0) -> str:
    done = subprocess.run(
        ["sh", str(SCRIPT), *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=dict(os.environ),
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr


def dry(root: Path, *words: str) -> str:
    return run("--root", str(root), "--no-venv", *words)


def test_an_agent_gets_its_unit_configuration_and_places(tmp_path):
    dry(tmp_path, "--agent", "--device", "pi-7", "--fleet", "garden")
    unit = tmp_path / "etc/systemd/system/lichen-agent.service"
    assert unit.read_bytes() == (ROOT / "systemd/lichen-agent.service").read_bytes()
    settings = read(tmp_path / "etc/lichen/agent.toml")
    assert (settings.fleet, settings.device, settings.roles) == ("garden", "pi-7", ("observe",))
    assert (settings.state_dir, settings.cache_dir) == (Path("/var/lib/lichen"), Path("/var/cache/lichen"))
    assert (tmp_path / "var/lib/lichen").stat().st_mode & 0o777 == 0o700
    assert not (tmp_path / "etc/systemd/system/lichen-coordinator.service").exists()
    assert not (unit.parent / "lichen-agent.service.d").exists()


def test_a_device_that_trains_gets_the_drop_in_that_pytorch_needs(tmp_path):
    dry(tmp_path, "--agent", "--train")
    dropin = tmp_path / "etc/systemd/system/lichen-agent.service.d/train.conf"
    assert "MemoryDenyWriteExecute=no" in dropin.read_text()


def test_a_coordinator_gets_a_configuration_and_a_task_that_are_sound(tmp_path):
    dry(tmp_path, "--coordinator", "--fleet", "garden")
    settings = load_settings(tmp_path / "etc/lichen/coordinator.toml")
    assert settings.state_dir == Path("/var/lib/lichen-coordinator")
    assert load_task(settings)[0].rounds.count > 0


def test_given_again_it_keeps_configuration_state_and_drop_ins_and_renews_units(tmp_path):
    dry(tmp_path, "--agent", "--train")
    config = tmp_path / "etc/lichen/agent.toml"
    config.write_text("mine")
    (tmp_path / "var/lib/lichen/spool.sqlite3").write_text("state")
    unit = tmp_path / "etc/systemd/system/lichen-agent.service"
    (unit.parent / "lichen-agent.service.d/own.conf").write_text("[Service]\n")
    unit.write_text("of an older release")
    dry(tmp_path, "--agent")
    assert config.read_text() == "mine"
    assert (tmp_path / "var/lib/lichen/spool.sqlite3").read_text() == "state"
    assert unit.read_bytes() == (ROOT / "systemd/lichen-agent.service").read_bytes()
    assert sorted(path.name for path in (unit.parent / "lichen-agent.service.d").iterdir()) == [
        "own.conf",
        "train.conf",
    ]


@pytest.mark.parametrize("what", ["--wheel", "--package"])
def test_versions_that_work_on_this_machine_are_pinned_over_upgrades(tmp_path, what):
    root, said, python = tmp_path / "root", tmp_path / "said", tmp_path / "python"
    (wheel := tmp_path / "lichen-0.1.0-py3-none-any.whl").write_bytes(b"wheel")
    python.write_text(f"""#!/bin/sh
[ "$1" != -c ] || {{ echo True; exit; }}
mkdir -p "$3/bin"
printf '#!/bin/sh\\necho "$@" >>{said}\\n' >"$3/bin/pip"
cp "$3/bin/pip" "$3/bin/lichen"
chmod +x "$3/bin/pip" "$3/bin/lichen"
""")
    python.chmod(0o755)
    spec = "lichen==0.1.0" if what == "--package" else str(wheel)
    given = ("--root", str(root), "--python", str(python), what, spec)
    run(*given)
    assert "--require-hashes" in said.read_text()
    assert "is installed" in run(*given)
    said.unlink()
    run(*given, "--no-lock")
    assert "-c /dev/null" in said.read_text()
    assert "--require-hashes" not in said.read_text()
    said.unlink()
    pins = root / "etc/lichen/constraints.txt"
    pins.write_text("onnxruntime<1.28\n")
    run(*given)
    assert f"-c {pins}" in said.read_text(), "pins are heeded, though wheel and extras are the same"
    assert "is installed" in run(*given)
    pins.write_text("onnxruntime<1.27\n")
    assert "is installed" not in run(*given)


@pytest.mark.parametrize("purge", [False, True])
def test_uninstall_keeps_configuration_and_state_unless_they_are_to_go(tmp_path, purge):
    dry(tmp_path, "--agent", "--coordinator")
    (tmp_path / "opt/lichen/versions/1").mkdir(parents=True)
    run("--root", str(tmp_path), "--uninstall", *(["--purge"] if purge else []))
    assert not (tmp_path / "opt/lichen").exists()
    assert not list((tmp_path / "etc/systemd/system").glob("*.service"))
    for kept in ("etc/lichen", "var/lib/lichen", "var/lib/lichen-coordinator", "var/cache/lichen"):
        assert (tmp_path / kept).exists() is not purge
    run("--root", str(tmp_path), "--uninstall")  # nothing is there: nothing to do


def test_rollback_changes_the_two_versions_and_says_no_where_there_is_one_alone(tmp_path):
    opt = tmp_path / "opt/lichen"
    for version in ("1", "2"):
        (opt / "versions" / version).mkdir(parents=True)
    (opt / "current").symlink_to("versions/2")
    assert "no version before" in run("--root", str(tmp_path), "--rollback", status=69)
    (opt / "previous").symlink_to("versions/1")
    run("--root", str(tmp_path), "--rollback")
    assert (str((opt / "current").readlink()), str((opt / "previous").readlink())) == (
        "versions/1",
        "versions/2",
    )
    run("--root", str(tmp_path), "--rollback")
    assert str((opt / "current").readlink()) == "versions/2"


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["--agnet"], 2, "unknown option --agnet"),
        (["--wheel"], 2, "needs a value"),
        (["--wheel", "a", "--package", "b"], 2, "exclude each other"),
        (["--no-venv"], 2, "needs --root"),
        (["--root", "{}", "--device", "a b"], 2, "letters, digits"),
        (["--root", "{}", "--wheel", "/no/such.whl"], 69, "no such file"),
        (["--root", "{}", "--package", "lichen==0.1.0", "--extras", "infer,demo"], 2, "--no-lock"),
        (["--root", "{}", "--python", "/no/python"], 69, "apt-get install python3"),
    ],
)
def test_what_is_wrong_is_said_and_nothing_is_laid(tmp_path, words, status, said):
    root = tmp_path / "root"
    assert said in run(*[word.format(root) for word in words], status=status)
    assert not root.exists()


def test_shellcheck_finds_nothing():
    program = shutil.which("shellcheck")
    if program is None:
        pytest.skip("SKIPPED LOUDLY: shellcheck is not installed (apt-get install shellcheck)")
    done = subprocess.run([program, str(SCRIPT)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout


def test_a_name_that_not_every_broker_takes_is_refused_with_one_that_is(tmp_path):
    said = run("--root", str(tmp_path), "--no-venv", "--device", "barn.gateway", status=2)
    assert "write barn-gateway" in said
    assert not (tmp_path / "etc").exists()


def test_the_page_of_a_device_comes_with_its_extra_alone(tmp_path):
    page = ("lichen-agent-page.socket", "lichen-agent-page.service")
    units = tmp_path / "etc/systemd/system"
    dry(tmp_path, "--agent")
    assert not [name for name in page if (units / name).exists()]
    dry(tmp_path, "--agent", "--extras", "infer,web")
    for name in page:
        assert (units / name).read_bytes() == (ROOT / "systemd" / name).read_bytes()
    dry(tmp_path, "--uninstall")
    assert not [name for name in page if (units / name).exists()]


def test_the_console_comes_with_its_extra_alone(tmp_path):
    unit = tmp_path / "etc/systemd/system/lichen-console.service"
    dry(tmp_path, "--coordinator")
    assert not unit.exists()
    dry(tmp_path, "--coordinator", "--extras", "coordinator,export,console")
    assert unit.read_bytes() == (ROOT / "systemd" / unit.name).read_bytes()
    dry(tmp_path, "--uninstall")
    assert not unit.exists()


def test_a_wheel_built_from_the_checkout_has_every_package_of_the_project():
    [line] = [line for line in SCRIPT.read_text().splitlines() if "tar -cf - pyproject.toml" in line]
    named = {word.rstrip(")") for word in line.split()}
    found = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]["find"]
    assert {name.partition("*")[0].partition(".")[0] for name in found["include"]} <= named
