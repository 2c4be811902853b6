"""Every finding of the doctor's, from facts that are made up; and the probes on this machine."""

import json
import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from edge_agent.cli import main
from edge_agent.config.agent import read
from edge_agent.config.providers import ProviderPackage
from edge_agent.doctor import imports, service_account
from edge_agent.doctor.checks import (
    accelerators,
    broker,
    clock,
    configuration,
    confinement,
    cpu,
    disk,
    hardware,
)
from edge_agent.doctor.checks.broker import BrokerReply, Tls
from edge_agent.doctor.findings import MIB, fail, ok, status_of, warn
from edge_agent.doctor.service_account import ServiceUser, Unit
from edge_agent.identity.files import folder_of
from edge_agent.inference.providers.catalog import Accelerator
from edge_agent.inference.providers.kinds import Provider
from protocol.errors import Misconfigured
from runtime.process import landlock, time_limit
from tests.unit.edge_agent.messaging.test_agent_session import BASIC, config, write_task

ME = ServiceUser("lichen-agent", 997, frozenset({997, 44}))
NOW = 1_800_000_000.0
DAY_S = 86400.0


def levels(findings) -> dict[str, str]:
    return {finding.check: finding.level for finding in findings}


def only(findings, check):
    found = [finding for finding in findings if finding.check == check]
    assert len(found) == 1, findings
    if found[0].level != "ok":
        assert found[0].todo
    return found[0]


def test_the_exit_status_is_of_the_worst_and_the_configuration_comes_first():
    assert status_of([ok("a", ""), warn("b", "", "x")]) == 0
    assert status_of([ok("a", ""), fail("b", "", "x")]) == 69
    assert status_of([fail("b", "", "x"), fail("c", "", "x", 78)]) == 78


def test_it_says_whether_models_processes_give_up_the_device_s_secrets(tmp_path):
    plain = read(config(tmp_path))
    within = plain.model_copy(update={"infer": plain.infer.model_copy(update={"isolation": "none"})})
    off = plain.infer.model_copy(update={"enabled": False})
    assert "Landlock 3" in only(confinement.judge(3, plain), "models.landlock").seen
    assert "may read what the agent may" in only(confinement.judge(3, within), "models.landlock").seen
    assert only(confinement.judge(0, plain), "models.landlock").level == "warn"
    assert confinement.judge(0, plain.model_copy(update={"infer": off, "roles": ["observe"]})) == []
    assert confinement.probe() == landlock.version()


def test_it_says_of_each_accelerator_whether_it_is_used_and_why_not(tmp_path):
    settings = read(config(tmp_path))
    package = ProviderPackage(name="lichen-npu", version="1.0", sha256="0" * 64)
    lost = Accelerator(Provider("npu", package), "infer.packages names package lichen-npu 1.0: not installed")
    gone = Accelerator(Provider("TensorrtExecutionProvider"), "no NVIDIA device file in /dev")
    good = Accelerator(Provider("OpenVINOExecutionProvider"), "", "Arc", (("driver", "2"),), compiles=True)
    choice = {"provider": "CPUExecutionProvider", "why": "float32 on OpenVINO is not faster"}
    about = {"engine_hits": 3, "engines_compiled": 1, "compile_s": 81.5}
    status = {"model_choice": choice, "accelerators": about}
    facts = accelerators.AcceleratorFacts((lost, gone, good), ((tmp_path, 2 * MIB), (tmp_path, MIB)), status)
    found = accelerators.judge(facts, settings)
    first, second, third, engines, chosen = found
    assert [finding.level for finding in found] == ["warn", "warn", "ok", "ok", "ok"]
    assert "npu of package lichen-npu is not used" in first.seen
    assert "lichen task package NAME" in first.todo
    assert "no NVIDIA device file" in second.seen
    assert "accelerators.md" in second.todo
    assert "may run models on Arc (driver 2)" in third.seen
    assert "2 compiled models, 3.0 of 512 MiB" in engines.seen
    assert "float32 on OpenVINO is not faster" in chosen.seen
    assert "3 compiled models found, 1 compiled, the last one in 81.5 s" in chosen.seen
    assert accelerators.judge(accelerators.AcceleratorFacts(), settings) == []


def test_a_provider_of_a_package_is_refused_where_models_run_in_the_agent(tmp_path):
    plain = config(tmp_path)
    package = '[[infer.packages]]\nname = "a"\nversion = "1"\nsha256 = "' + "0" * 64 + '"\n'
    plain.write_text(plain.read_text() + '[infer]\nisolation = "none"\n' + package)
    with pytest.raises(Misconfigured, match="never runs in the agent's process"):
        read(plain)


PI4 = cpu.Processor("aarch64", 64, frozenset({"fp", "asimd", "crc32"}), 4, 4096 * MIB, (3, 11))


@pytest.mark.parametrize(
    ("found", "roles", "check", "level", "words"),
    [
        (PI4, (), "cpu.architecture", "ok", "aarch64"),
        (replace(PI4, bits=32, machine="armv7l"), (), "cpu.architecture", "fail", "32 bits"),
        (replace(PI4, bits=32), (), "cpu.architecture", "fail", "32 bits"),
        (replace(PI4, machine="riscv64"), (), "cpu.architecture", "warn", "riscv64"),
        (PI4, (), "cpu.instructions", "warn", "LSE atomics"),
        (replace(PI4, flags=frozenset({"atomics", "asimddp"})), (), "cpu.instructions", "ok", "with dot"),
        (replace(PI4, flags=frozenset({"atomics"})), (), "cpu.instructions", "ok", "without dot"),
        (replace(PI4, flags=frozenset()), (), "cpu.instructions", "warn", "names no"),
        (replace(PI4, machine="x86_64", flags=frozenset({"sse2"})), (), "cpu.instructions", "warn", "AVX2"),
        (replace(PI4, machine="x86_64", flags=frozenset({"avx2"})), (), "cpu.instructions", "ok", "without"),
        (replace(PI4, memory_bytes=512 * MIB), ("train",), "cpu.memory", "warn", "512 MiB"),
        (replace(PI4, memory_bytes=128 * MIB), ("observe",), "cpu.memory", "warn", "128 MiB"),
    ],
)
def test_processors(found, roles, check, level, words):
    finding = only(cpu.judge(found, roles), check)
    assert finding.level == level
    assert words in finding.seen


def test_enough_memory_is_no_finding_and_flags_are_read_of_both_architectures():
    assert "cpu.memory" not in levels(cpu.judge(PI4, ("train",)))
    assert cpu.flags_of("processor : 0\nFeatures\t: fp atomics\n", "aarch64") == {"fp", "atomics"}
    assert cpu.flags_of("flags\t\t: sse2 avx2\nflags : other\n", "x86_64") == {"sse2", "avx2"}
    assert cpu.flags_of("nothing", "x86_64") == frozenset()


def test_an_emulated_processor_is_not_judged_by_the_file_of_the_machine_below():
    flags = cpu.flags_of("flags\t\t: sse2 avx2\n", "aarch64")
    finding = only(cpu.judge(replace(PI4, flags=flags), ()), "cpu.instructions")
    assert "LSE" not in finding.seen
    assert "emulated" in finding.seen


@pytest.mark.parametrize(
    ("trial", "level", "seen", "todo"),
    [
        (imports.Imported("torch", True, 0), "ok", "works", ""),
        (imports.Imported("torch", True, -signal.SIGILL), "fail", "SIGILL", "another version of torch"),
        (imports.Imported("onnxruntime", True, -signal.SIGSEGV), "fail", "SIGSEGV", "another version"),
        (imports.Imported("onnxruntime", True, -signal.SIGSEGV), "fail", "SIGSEGV", "onnxruntime<VERSION"),
        (imports.Imported("base", True, -signal.SIGSEGV), "fail", "SIGSEGV", "numpy<VERSION into"),
        (imports.Imported("torch", True, -40), "fail", "signal 40", "another version of torch"),
        (imports.Imported("torch", True, -signal.SIGKILL), "fail", "SIGKILL", "out of memory"),
        (imports.Imported("torch", True, None), "warn", "not imported in 60 s", "busy"),
        (
            imports.Imported("onnxruntime", True, 1, "ModuleNotFoundError: No module named 'onnxruntime'"),
            "warn",
            "onnxruntime is not installed",
            "lichen[infer]",
        ),
        (
            imports.Imported("onnxruntime", False, 1, "ModuleNotFoundError: No module named 'onnxruntime'"),
            "ok",
            "nothing here needs it",
            "",
        ),
        (
            imports.Imported("base", True, 1, "x\nModuleNotFoundError: No module named 'cbor2'\n"),
            "fail",
            "cbor2 is not installed",
            "install.sh",
        ),
        (imports.Imported("base", True, 1, "ImportError: libopenblas.so"), "fail", "libopenblas", "again"),
        (imports.Imported("base", True, 1, ""), "fail", "it said nothing", "again"),
    ],
)
def test_imports(trial, level, seen, todo):
    finding = imports.judge([trial])[0]
    assert (finding.check, finding.level) == (f"imports.{trial.name}", level)
    assert seen in finding.seen
    assert todo in finding.todo


def test_what_is_tried_follows_the_configuration(tmp_path):
    trains = read(config(tmp_path))
    assert imports.names(trains)["torch"]
    observes = read(config(tmp_path, roles=["observe"], text=BASIC + "[infer]\nenabled = false\n"))
    assert "onnxruntime" not in imports.names(observes)
    assert "torch" not in imports.names(observes)
    assert imports.names(None)["onnxruntime"] is False


def test_a_child_that_dies_of_a_signal_hangs_or_is_not_there(monkeypatch):
    died = time_limit.child("import os; os.kill(os.getpid(), 4)", 30)
    assert died[0] == -signal.SIGILL
    began = time.monotonic()
    assert time_limit.child("while True: pass", 0.3) == (None, "")
    assert time.monotonic() - began < 20
    monkeypatch.setitem(imports._TRIALS, "torch", "import no_such_library_at_all")
    found = imports.judge(imports.probe({"torch": True}))
    assert (found[0].level, found[0].seen) == ("warn", "no_such_library_at_all is not installed")


def test_a_probe_that_hangs_is_left():
    with pytest.raises(time_limit.TookTooLong):
        time_limit.run_with_timeout(0.05, lambda: time.sleep(5))
    with pytest.raises(PermissionError):
        time_limit.run_with_timeout(5, lambda: (_ for _ in ()).throw(PermissionError(13, "no")))
    assert time_limit.run_with_timeout(5, lambda: 3) == 3


@pytest.mark.parametrize(
    ("time_", "expected", "words"),
    [
        (clock.ClockTime(NOW, NOW - 1, True, True), {"clock.right": "ok", "clock.kept": "ok"}, "keeps it"),
        (clock.ClockTime(NOW, 0, True, False), {"clock.right": "ok", "clock.kept": "ok"}, "no battery"),
        (
            clock.ClockTime(NOW, 0, False, True),
            {"clock.right": "ok", "clock.kept": "warn"},
            "no time service",
        ),
        (clock.ClockTime(NOW, 0, None, False), {"clock.right": "ok", "clock.kept": "warn"}, "cannot be told"),
        (clock.ClockTime(0.0, NOW, True, True), {"clock.right": "fail"}, "1970-01-01"),
    ],
)
def test_clocks(time_, expected, words):
    found = clock.judge(time_)
    assert levels(found) == expected
    assert words in found[-1].seen


def test_a_clock_before_the_certificate_was_issued_is_behind(tmp_path):
    settings = read(config(tmp_path))
    pair = folder_of(settings.state_dir).pair
    pair.parent.mkdir(parents=True)
    pair.with_name("identity.json").write_text(json.dumps({"issued_at": time.time() + 10 * DAY_S}))
    assert levels(clock.judge(clock.probe(settings))) == {"clock.right": "fail"}
    pair.with_name("identity.json").unlink()
    assert levels(clock.judge(clock.probe(settings)))["clock.right"] == "ok"


FOLDER = disk.FolderUsage(
    "state_dir", Path("/var/lib/lichen"), Path("/var/lib/lichen"), 0o700, 997, True, "ext4", False,
    1000 * MIB, 0, 100_000, 320 * MIB,
)  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "check", "level", "code", "words"),
    [
        ({}, "disk.state_dir", "ok", 0, "lichen-agent's"),
        ({"read_only": True}, "disk.state_dir", "fail", 78, "read-only"),
        ({"writable": False}, "disk.state_dir", "fail", 78, "may not write"),
        ({"mode": 0o755}, "disk.state_dir", "warn", 0, "others may look in"),
        ({"there": Path("/var/lib")}, "disk.state_dir", "ok", 0, "can make it"),
        ({"there": Path("/var/lib"), "writable": False}, "disk.state_dir", "warn", 0, "may not make it"),
        ({}, "disk.kind", "ok", 0, "ext4"),
        ({"kind": "tmpfs"}, "disk.kind", "fail", 78, "memory"),
        ({"kind": "nfs4"}, "disk.kind", "fail", 78, "nfs4"),
        ({"kind": "vfat"}, "disk.kind", "warn", 0, "vfat"),
        ({"kind": "overlay"}, "disk.kind", "warn", 0, "overlay"),
        ({}, "disk.space.state_dir", "ok", 0, "1000 MiB free, of which the agent may take 320"),
        ({"free_bytes": 10 * MIB}, "disk.space.state_dir", "fail", 69, "10 MiB free"),
        ({"free_bytes": 200 * MIB}, "disk.space.state_dir", "warn", 0, "200 MiB free"),
        ({"free_bytes": 200 * MIB, "used_bytes": 300 * MIB}, "disk.space.state_dir", "ok", 0, "20 more"),
        ({"free_inodes": 3}, "disk.space.state_dir", "warn", 0, "3 inodes"),
        ({"free_inodes": -1}, "disk.space.state_dir", "ok", 0, "free"),
    ],
)
def test_folders(changes, check, level, code, words):
    finding = only(disk.judge([replace(FOLDER, **changes)], ME, []), check)
    assert finding.level == level
    assert words in finding.seen
    assert level != "fail" or finding.code == code


def test_secrets_that_others_may_read(tmp_path):
    assert levels(disk.judge([], ME, []))["disk.secrets"] == "ok"
    secret = tmp_path / "password"
    secret.write_text("x")
    secret.chmod(0o644)
    text = BASIC + f'[mqtt]\nusername = "u"\npassword_file = "{secret}"\n'
    settings = read(config(tmp_path, text=text))
    found = disk.judge([], ME, disk.secrets_of(settings))
    assert [finding.level for finding in found] == ["warn"]
    assert f"{secret} is a secret" in found[0].seen
    secret.chmod(0o640)
    assert disk.secrets_of(settings) == []


def test_the_mount_that_covers_a_path():
    lines = (
        "20 1 8:1 / / ro,relatime - ext4 /dev/root rw\n21 20 0:5 / /var/lib rw - tmpfs tmpfs rw,size=1\n"
        "22 21 0:6 / /var/lib rw,noatime - btrfs /dev/sda rw\n"
        "23 20 0:7 / /mnt/my\\040disk rw - vfat /dev/b rw\nodd\n"
    )
    assert disk.mount_of(Path("/etc"), lines) == ("ext4", {"ro", "rw", "relatime"})
    assert disk.mount_of(Path("/var/lib/lichen"), lines)[0] == "btrfs"
    assert disk.mount_of(Path("/var/library"), lines)[0] == "ext4"
    assert disk.mount_of(Path("/mnt/my disk/x"), lines)[0] == "vfat"


def test_a_person_is_let_in_by_mode_and_groups(tmp_path):
    file = tmp_path / "node"
    file.write_text("")
    status = file.stat()
    file.chmod(0o640)
    owner = ServiceUser("o", status.st_uid or 1, frozenset())
    mine = file.stat()
    assert ServiceUser("root", 0, frozenset()).may(os.W_OK, mine)
    assert owner.may(os.R_OK, mine) is (status.st_uid != 0)
    assert ServiceUser("g", 12345, frozenset({status.st_gid})).may(os.R_OK, mine)
    assert not ServiceUser("g", 12345, frozenset({status.st_gid})).may(os.W_OK, mine)
    assert not ServiceUser("x", 12345, frozenset({12345})).may(os.R_OK, mine)
    with pytest.raises(KeyError):
        service_account.service_user("no-such-user-here")


SERIAL = hardware.HardwareNode("/dev/ttyUSB0", "serial", True, "dialout", "source[1]")


@pytest.mark.parametrize(
    ("node", "unit_", "level", "words", "todo"),
    [
        (SERIAL, Unit(), "ok", "open to lichen-agent", ""),
        (replace(SERIAL, readable=None), Unit(), "warn", "is not there", "plug it in"),
        (
            replace(SERIAL, readable=False),
            Unit(),
            "fail",
            "closed",
            "group dialout: copy systemd/examples/agent-serial",
        ),
        (SERIAL, Unit(installed=True, private_devices=True), "fail", "hidden", "agent-serial.conf"),
        (SERIAL, Unit(installed=True), "ok", "open", ""),
    ],
)
def test_device_files(node, unit_, level, words, todo):
    finding = hardware.judge([node], ME, unit_)[0]
    assert finding.level == level
    assert words in finding.seen
    assert todo in finding.todo


def test_device_files_are_found_by_kind_and_by_the_sources_that_name_them(tmp_path):
    for name in ("i2c-1", "ttyACM0", "null"):
        (tmp_path / name).write_text("")
    sources = [
        {"kind": "x", "bus": [f"{tmp_path}/i2c-1"]},
        {"kind": "serial", "port": f"{tmp_path}/serial/by-id/a"},
    ]
    nodes = hardware.probe(sources, ME, tmp_path)
    assert [(Path(node.path).name, node.kind, node.named_by) for node in nodes] == [
        ("i2c-1", "i2c", "source[0]"),
        ("a", "serial", "source[1]"),
        ("ttyACM0", "serial", ""),
    ]
    found = hardware.judge(nodes, ME, Unit())
    assert [finding.level for finding in found] == ["ok", "warn", "ok"]
    assert f"{tmp_path}/ttyACM0" in found[-1].seen
    assert hardware.judge([], ME, Unit())[0].level == "ok"


def test_the_unit_and_its_drop_ins(tmp_path):
    assert service_account.read_unit(tmp_path) == Unit()
    folder = tmp_path / "etc/systemd/system"
    (folder / "lichen-agent.service.d").mkdir(parents=True)
    root = Path(__file__).parents[4] / "systemd"
    (folder / "lichen-agent.service").write_text((root / "lichen-agent.service").read_text())
    assert service_account.read_unit(tmp_path) == Unit(installed=True, private_devices=True)
    for name in ("serial", "i2c"):
        text = (root / f"examples/agent-{name}.conf").read_text()
        (folder / f"lichen-agent.service.d/{name}.conf").write_text(text)
    assert service_account.read_unit(tmp_path) == Unit(installed=True, groups=frozenset({"dialout", "i2c"}))
    assert (
        service_account.parse_unit(["SupplementaryGroups=a b\nSupplementaryGroups=\n"]).groups == frozenset()
    )


GOOD = BrokerReply(
    ("192.0.2.1",),
    tls=Tls("", NOW + 90 * DAY_S, NOW + 90 * DAY_S),
    admission="",
    limit_bytes=262144,
    foreign_topic=False,
)
LOCAL = replace(GOOD, addresses=("127.0.0.1",), tls=None)


def seen_by(tmp_path, asked, *, tls=True, mqtt=""):
    (tmp_path / "ca.pem").write_text("")
    table = '[mqtt.tls]\nca_file = "ca.pem"\n' if tls else ""
    settings = read(config(tmp_path, text=BASIC + f'[mqtt]\nhost = "hub"\n{mqtt}{table}'))
    return broker.judge(asked, settings, NOW)


@pytest.mark.parametrize(
    ("changes", "check", "level", "words"),
    [
        ({}, "broker.reach", "ok", "answers (192.0.2.1)"),
        ({"addresses": ()}, "broker.reach", "fail", "not known"),
        ({"reach": "hub:1883 is not there: connection refused"}, "broker.reach", "fail", "refused"),
        ({}, "broker.tls", "ok", "chain and host name are right"),
        ({"tls": Tls("not trusted: self-signed"), "admission": None}, "broker.tls", "fail", "self-signed"),
        ({"tls": None}, "broker.tls", "warn", "not asked"),
        ({"tls": Tls("", NOW - 1, None)}, "broker.tls", "fail", "the broker's certificate ran out"),
        ({"tls": Tls("", NOW + DAY_S, None)}, "broker.tls", "warn", "the broker's certificate holds only"),
        ({"tls": Tls("", NOW + 90 * DAY_S, NOW - 1)}, "broker.tls", "fail", "this device's certificate ran"),
        ({"tls": Tls("", None, NOW + DAY_S)}, "broker.tls", "warn", "this device's certificate holds only"),
        ({}, "broker.admission", "ok", "lets this device in"),
        ({"admission": "refuses us: bad password"}, "broker.admission", "fail", "bad password"),
        ({}, "broker.acl", "ok", "another device's are not"),
        ({"own_topic": "Not authorized"}, "broker.acl", "fail", "may not write on its own topics"),
        ({"refused_filters": ("x/down/#: Not authorized",)}, "broker.acl", "fail", "x/down/#"),
        ({"foreign_topic": True}, "broker.acl", "warn", "pose as all"),
        ({"foreign_topic": None}, "broker.acl", "ok", "3.1.1"),
        ({}, "broker.packets", "ok", "65536 bytes passes"),
        ({"own_topic": "Not authorized"}, "broker.packets", "warn", "not asked"),
        ({"chunk_trouble": "cut off"}, "broker.packets", "fail", "cut off"),
        ({"limit_bytes": 20_000}, "broker.packets", "warn", "at most 20000"),
    ],
)
def test_brokers(tmp_path, changes, check, level, words):
    finding = only(seen_by(tmp_path, replace(GOOD, **changes)), check)
    assert finding.level == level
    assert words in finding.seen


def test_without_tls_a_broker_elsewhere_is_doubtful_and_one_here_is_not(tmp_path):
    assert only(seen_by(tmp_path, replace(GOOD, tls=None), tls=False), "broker.tls").level == "warn"
    open_here = replace(LOCAL, foreign_topic=True)
    found = levels(seen_by(tmp_path, open_here, tls=False))
    assert (found["broker.tls"], found["broker.acl"]) == ("ok", "ok")
    assert broker.is_loopback(("::1", "127.0.0.1"))
    assert not broker.is_loopback(("fe80::1%eth0",))


def test_what_fails_first_ends_the_questions(tmp_path):
    assert list(levels(seen_by(tmp_path, replace(GOOD, reach="x")))) == ["broker.reach"]
    failed = replace(GOOD, tls=Tls("x"), admission=None)
    assert list(levels(seen_by(tmp_path, failed))) == ["broker.reach", "broker.tls"]


def test_a_configuration_that_is_sound_and_those_that_are_not(tmp_path):
    write_task(tmp_path)
    path = config(tmp_path, task_file="task.toml")
    found = configuration.judge(configuration.probe(path), path)
    assert only(found, "config.files").level == "ok"
    assert "replay toy.npz" in only(found, "config.files").seen
    config(tmp_path, text=BASIC + '[mqtt.tls]\nca_file = "no.pem"\n[infer]\noutput = "."\n')
    wrong = configuration.judge(configuration.probe(path), path)
    assert [finding.code for finding in wrong if finding.level == "fail"] == [78, 78]
    assert {"mqtt.tls.ca_file" in f.seen or "infer.output" in f.seen for f in wrong if f.level == "fail"} == {
        True
    }
    path.write_text('fleet = "f"\ndevise = "d"\n')
    assert "devise" in configuration.judge(configuration.probe(path), path)[0].seen


def doctor(path, *words):
    return CliRunner().invoke(main.app, ["doctor", "--config", str(path), *words])


@pytest.fixture
def quick(monkeypatch):
    """Only numpy and its like are tried: torch takes long."""
    monkeypatch.setattr(imports, "names", lambda _: {"base": True})


@pytest.mark.usefixtures("quick")
def test_the_command_works_offline_and_without_root_and_names_what_is_wrong(tmp_path):
    path = config(tmp_path, text=BASIC + "[mqtt]\nport = 1\n")
    told = json.loads(doctor(path, "--offline", "--format", "json").stdout)
    assert told["fail"] == 0
    assert {f["check"].split(".")[0] for f in told["findings"]} == {
        "config", "cpu", "imports", "clock", "trust", "models", "disk", "hardware",
    }  # fmt: skip
    assert all(finding["todo"] for finding in told["findings"] if finding["level"] != "ok")
    result = doctor(path)
    assert result.exit_code == 69
    assert "FAIL broker.reach" in result.stdout
    assert "connection refused" in result.stdout
    assert sorted(one.name for one in tmp_path.iterdir()) == ["agent.toml", "toy.npz"]  # it made nothing


@pytest.mark.usefixtures("quick")
def test_a_wrong_configuration_is_78_and_the_machine_is_looked_at_all_the_same(tmp_path):
    result = doctor(tmp_path / "none.toml", "--format", "json")
    assert result.exit_code == 78
    checks = {finding["check"] for finding in json.loads(result.stdout)["findings"]}
    assert {"config.files", "cpu.architecture", "imports.base", "clock.right"} <= checks
    path = config(tmp_path)
    assert doctor(path, "--offline", "--user", "no-such-user-here").exit_code == 78
