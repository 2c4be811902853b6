"""The units: what docs/install.md promises is in them, and systemd itself finds nothing to say."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from console.serve import NICENESS

ROOT = Path(__file__).parents[3]
UNITS = ROOT / "systemd"
DAEMONS = {"lichen-agent": "agent run", "lichen-coordinator": "coordinator serve"}
EXPOSURE = 2.0
PROMISED = {
    "Type": "notify",
    "NotifyAccess": "main",
    "Restart": "on-failure",
    "RestartPreventExitStatus": "78 2",
    "OOMPolicy": "continue",
    "KillMode": "mixed",
    "ProtectSystem": "strict",
    "ProtectHome": "yes",
    "NoNewPrivileges": "yes",
    "CapabilityBoundingSet": "",
    "UMask": "0077",
    "StateDirectoryMode": "0700",
    "ConfigurationDirectory": "lichen",
}
daemons = pytest.mark.parametrize("name", DAEMONS)


def parse(path: Path) -> dict[str, list[str]]:
    """Every key with its values in order; sections are not told apart, for no key is in two of them."""
    found: dict[str, list[str]] = {}
    for line in path.read_text().splitlines():
        if line and line[0] not in "#[":
            key, equals, value = line.partition("=")
            assert equals, f"{path.name}: {line}"
            found.setdefault(key, []).append(value)
    return found


def analyze(*words: str) -> str:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("SKIPPED LOUDLY: systemd-analyze is not installed (apt-get install systemd)")
    done = subprocess.run([program, *words], capture_output=True, text=True, timeout=60, check=False)
    if "Unknown option" in done.stderr or "Unknown command" in done.stderr:
        pytest.skip("SKIPPED LOUDLY: this systemd-analyze is too old for it (250 is wanted)")
    return f"{done.returncode}\n{done.stdout}{done.stderr}"


def installed(folder: Path, name: str, *dropins: str) -> Path:
    """The unit as it would be installed, but for the program, which is not there."""
    text = (UNITS / f"{name}.service").read_text()
    path = folder / f"{name}.service"
    path.write_text(re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", text, flags=re.MULTILINE))
    extra = [(UNITS / "examples" / dropin).read_text() for dropin in dropins]
    path.write_text("\n".join([path.read_text(), *extra]))
    return path


@daemons
def test_a_unit_says_what_the_design_promises(name):
    found, role = parse(UNITS / f"{name}.service"), name.removeprefix("lichen-")
    assert {key: found[key][-1] for key in PROMISED} == PROMISED
    assert found["ExecStart"] == [
        f"/opt/lichen/current/bin/lichen {DAEMONS[name]} --config /etc/lichen/{role}.toml"
    ]
    assert found["User"] == [name]
    assert int(found["WatchdogSec"][0]) >= 60
    assert "network-online.target" in found["Wants"][0].split()
    assert "Requires" not in found


@pytest.mark.parametrize("kind", ["path", "service"])
def test_the_brokers_reload_never_stops_for_good(kind):
    """At systemd's default the sixth revocation within ten seconds ends both until a person resets them."""
    found = parse(UNITS / "examples" / f"lichen-broker-reload.{kind}")
    assert found["StartLimitIntervalSec"] == ["0"]
    assert found.get("TriggerLimitIntervalSec", ["0"]) == ["0"]


@daemons
def test_a_daemon_stands_in_an_empty_folder_of_its_own(name):
    """ONNX Runtime may read files below it; without this line it is ``/``."""
    found = parse(UNITS / f"{name}.service")
    assert found["RuntimeDirectory"] == [name]
    assert found["RuntimeDirectoryMode"] == ["0700"]
    assert found["WorkingDirectory"] == [f"%t/{name}"]


def calls_of(group: str) -> set[str]:
    """System calls of one of systemd's groups, with those of the groups within."""
    words = [line.strip() for line in analyze("syscall-filter", "--no-pager", group).splitlines()[2:]]
    named = {word for word in words if word and not word.startswith("#")}
    within = {word for word in named if word.startswith("@")}
    return (named - within).union(*(calls_of(word) for word in within))


@daemons
def test_the_filter_permits_what_confined_processes_call(name):
    lines = parse(UNITS / f"{name}.service")["SystemCallFilter"]
    allowed: set[str] = set()
    for line in lines:
        words = line.removeprefix("~").split()
        some = set().union(*(calls_of(word) if word.startswith("@") else {word} for word in words))
        allowed = allowed - some if line.startswith("~") else allowed | some
    confining = {f"landlock_{call}" for call in ("create_ruleset", "add_rule", "restrict_self")}
    assert {"memfd_create", "fcntl", "mmap", "chdir", "mkdir", "rmdir", "prctl", *confining} <= allowed


def test_the_agent_waits_for_no_network():
    assert "network-online.target" not in " ".join(parse(UNITS / "lichen-agent.service")["After"])


def test_each_daemon_has_a_state_of_its_own_and_a_user_that_is_made():
    states = [parse(UNITS / f"{name}.service")["StateDirectory"] for name in DAEMONS]
    assert states == [["lichen"], ["lichen-coordinator"]]
    users = re.findall(r"^u (\S+) .*? (/\S+)", (UNITS / "lichen.sysusers").read_text(), re.MULTILINE)
    assert users == [(name, f"/var/lib/{state[0]}") for name, state in zip(DAEMONS, states, strict=True)]


@daemons
def test_systemd_finds_nothing_wrong(name, tmp_path):
    assert analyze("verify", "--man=no", str(installed(tmp_path, name))).strip() == "0"


@pytest.mark.parametrize("example", sorted(path.name for path in (UNITS / "examples").glob("*.conf")))
def test_systemd_finds_nothing_wrong_with_a_drop_in(example, tmp_path):
    name = "lichen-" + example.partition("-")[0]
    assert analyze("verify", "--man=no", str(installed(tmp_path, name, example))).strip() == "0"


@pytest.mark.parametrize(
    ("name", "dropins"),
    [
        ("lichen-agent", ()),
        ("lichen-agent", ("agent-train.conf",)),
        ("lichen-agent", ("agent-train.conf", "agent-iio.conf", "agent-i2c.conf", "agent-serial.conf")),
        ("lichen-coordinator", ()),
    ],
)
def test_the_exposure_stays_low(name, dropins, tmp_path):
    said = analyze(
        "security",
        "--offline=true",
        f"--threshold={EXPOSURE * 10:g}",
        str(installed(tmp_path, name, *dropins)),
    )
    level = float(re.findall(r"exposure level for \S+: ([\d.]+)", said)[0])
    assert level < EXPOSURE, said
    if (
        not dropins
    ):  # the figure of docs/install.md, by the systemd of Debian 12; another one may count otherwise
        told = re.findall(rf"`{name}.service` \| ([\d.]+)", (ROOT / "docs" / "install.md").read_text())
        assert abs(float(told[0]) - level) <= 0.3


def test_the_udev_rule_names_only_files_of_a_buffer():
    rules = (UNITS / "examples" / "90-lichen-iio.rules").read_text()
    named = re.findall(r"/sys%p/([^ ;]+)", rules)
    assert "buffer*/enable" in named
    assert all(
        re.match(r"(buffer\*|scan_elements|trigger|\*sampling|current_timestamp)", one) for one in named
    )
    lines = [line for line in rules.splitlines() if line and not line.startswith("#")]
    assert all(line.count('"') % 2 == 0 for line in lines)


def test_the_page_of_a_device_is_started_by_its_socket_and_reads_no_key(tmp_path):
    socket, service = (parse(UNITS / f"lichen-agent-page.{kind}") for kind in ("socket", "service"))
    assert socket["ListenStream"] == ["127.0.0.1:8481"]
    assert socket["IPAddressDeny"] == service["IPAddressDeny"] == ["any"]
    assert service["ExecStart"] == [
        "/opt/lichen/current/bin/lichen agent page --config /etc/lichen/agent.toml"
    ]
    assert service["User"] == ["lichen-agent"]
    assert service["InaccessiblePaths"] == ["-/var/lib/lichen"], "the fleet's keys are there"
    assert "Restart" not in service
    (tmp_path / "lichen-agent-page.socket").write_text((UNITS / "lichen-agent-page.socket").read_text())
    assert analyze("verify", "--man=no", str(installed(tmp_path, "lichen-agent-page"))).strip() == "0"
    said = analyze("security", "--offline=true", str(tmp_path / "lichen-agent-page.service"))
    assert float(re.findall(r"exposure level for \S+: ([\d.]+)", said)[0]) < EXPOSURE, said


def test_the_console_comes_after_the_coordinator_whose_files_it_reads(tmp_path):
    console, coordinator = (parse(UNITS / f"lichen-{name}.service") for name in ("console", "coordinator"))
    assert console["ExecStart"] == [
        "/opt/lichen/current/bin/lichen console serve --config /etc/lichen/coordinator.toml"
    ]
    same = ("User", "StateDirectory", "Type", "Restart", "RestartPreventExitStatus", "ProtectSystem", "UMask")
    assert {key: console[key] for key in same} == {key: coordinator[key] for key in same}
    assert "lichen-coordinator.service" in console["After"][0].split()
    assert int(console["Nice"][0]) == NICENESS > 0
    assert not {"Requires", "BindsTo", "PartOf"} & set(console), "it shows how a stopped coordinator stood"
    assert analyze("verify", "--man=no", str(installed(tmp_path, "lichen-console"))).strip() == "0"
    said = analyze("security", "--offline=true", str(tmp_path / "lichen-console.service"))
    assert float(re.findall(r"exposure level for \S+: ([\d.]+)", said)[0]) < EXPOSURE, said
