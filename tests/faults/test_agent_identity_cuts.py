"""Power cuts, full disks and kills at every step of enrolment and renewal, on the simulated disk."""

import contextlib
import errno
import itertools
import os
import shutil
import signal
import subprocess
import sys
from contextvars import copy_context
from pathlib import Path

import pytest

from edge_agent.cli import enroll
from edge_agent.config.agent import read
from edge_agent.identity import enrolment_api, keys, renewal_job
from edge_agent.identity.files import IdentityFiles, folder_of
from lichen_lab.simulation.deterministic.machine.disk import PowerCut, SimDisk, memory_folder
from lichen_lab.simulation.deterministic.machine.process_life import LIFE, ProcessLife
from protocol.enrolment import ENROL_PATH, RENEW_PATH
from protocol.errors import Misconfigured, Transient
from runtime.mqtt.tls import tls_context
from runtime.storage.disk import DISK
from tests.support.identity.pki import Pki
from tests.support.identity.stub import Stub

ROOT = Path(__file__).parents[2]
CONFIG = """
state_dir = "state"
cache_dir = "cache"
[[source]]
kind = "system"
[source.modalities]
machine = ["load.1"]
"""


@pytest.fixture(scope="module")
def pki(tmp_path_factory):
    return Pki(tmp_path_factory.mktemp("pki"))


@pytest.fixture
def stub(pki):
    with Stub(pki) as running:
        yield running


@pytest.fixture
def memory():
    with memory_folder() as folder:
        yield Path(folder)


@pytest.fixture(autouse=True)
def _moments(monkeypatch):
    """Power may be cut just before a request, and after its answer."""
    for name in ("enrol", "renew", "authority"):
        monkeypatch.setattr(enrolment_api, name, _watched(getattr(enrolment_api, name), name))


def _watched(call, name):
    def watched(*args):
        life = LIFE.get()
        if life is not None:
            life.moment(f"before {name}")
        answer = call(*args)
        if life is not None:
            life.moment(f"after {name}")
        return answer

    return watched


def device(root: Path) -> Path:
    """A fresh device's files; returns its configuration."""
    root.mkdir(exist_ok=True)
    config = root / "agent.toml"
    config.write_text(CONFIG)
    (root / "state").mkdir(exist_ok=True)
    return config


def lived(disk: SimDisk, do, *args, **options):
    """Do something in a process that has this disk."""

    def inside():
        DISK.set(disk)
        LIFE.set(disk.life)
        return do(*args, **options)

    return copy_context().run(inside)


def freeze(disk: SimDisk, after: Path, *, power: bool) -> None:
    """What the next life finds; the simulated disk keeps contents and names, but no modes."""
    disk.freeze(after, power=power)
    for file in (after / "state").rglob("*"):
        file.chmod(0o700 if file.is_dir() else 0o600)


def enrol(config: Path, stub: Stub):
    return enroll._enroll(stub.invite(), config, None, 5.0, None, replace=False)


def key_of(path: Path) -> bytes:
    return keys.key_pem(keys.load_key(path.read_bytes(), str(path)))


def usable(config: Path) -> None:
    """What an agent would do with it at its start."""
    assert tls_context(read(config).mqtt) is not None


def whole(config: Path) -> None:
    """Certificate, key, authority, record and drop-in are there, fit, and nothing else is left over."""
    usable(config)
    folder = folder_of(config.parent / "state")
    identity, pem = folder.read(), folder.pair.read_bytes()
    facts = keys.check(
        keys.certificates_pem(pem, ""), folder.authority.read_text(), keys.load_key(pem, ""), "d1"
    )
    assert facts.serial == identity.serial
    left = {p.name for p in folder.path.iterdir()}
    assert left == {"ca.pem", "device.pem", "identity.json", "lock"}


@pytest.mark.parametrize(
    "power", [pytest.param(True, id="power cut"), pytest.param(False, id="kill", marks=pytest.mark.long)]
)
def test_enrolment_goes_on_after_a_cut_at_any_moment_with_the_same_key(pki, memory, power):
    for at in itertools.count(1):
        with Stub(pki) as stub:
            life = ProcessLife("d1", crash_at=at, power=power)
            config = device(memory / f"{at}-a")
            disk = SimDisk(config.parent, at, life=life)
            with contextlib.suppress(PowerCut):
                lived(disk, enrol, config, stub)
                assert not life.dead, "a cut that was swallowed"
                break
            after = memory / f"{at}-b"
            freeze(disk, after, power=power)
            asked = dict(stub.keys)
            again = SimDisk(after, at)
            lived(again, enrol, after / config.name, stub)
            whole(after / config.name)
            if asked:
                assert stub.keys == asked, "the token was shown with one key only"
    assert at > 20, "it did die at every step"


def test_what_enrolment_says_is_done_outlives_a_power_cut(stub, memory):
    config = device(memory / "a")
    disk = SimDisk(config.parent, 1)
    lived(disk, enrol, config, stub)
    folder = folder_of(disk.root / "state")
    for path in (folder.pair, folder.authority, folder.record, disk.root / "agent.d" / "50-identity.toml"):
        assert disk.is_durable(path), path.name


@pytest.mark.parametrize("power", [True, False], ids=["power cut", "kill"])
def test_a_renewal_that_is_cut_off_anywhere_leaves_a_pair_that_works(stub, memory, power):
    base = memory / "base"
    config = device(base)
    enrol(config, stub)
    for at in itertools.count(1):
        life = ProcessLife("d1", crash_at=at, power=power)
        stub.exchanged.clear()  # each life begins with the same certificate
        _copy(base, memory / f"{at}-a")
        disk = SimDisk(memory / f"{at}-a", at, life=life)
        folder = folder_of(disk.root / "state")
        with contextlib.suppress(PowerCut):
            lived(disk, renewal_job.renew, folder)
            break
        after = memory / f"{at}-b"
        freeze(disk, after, power=power)
        usable(after / config.name)
        lived(SimDisk(after, at), renewal_job.renew, folder_of(after / "state"))
        whole(after / config.name)
    assert at > 15


def _copy(base: Path, to: Path) -> None:
    shutil.copytree(base, to)


def test_a_lost_answer_is_asked_for_with_the_same_key(stub, memory):
    config = device(memory / "a")
    enrol(config, stub)
    folder = folder_of(config.parent / "state")
    old = key_of(folder.pair)
    stub.on_request = lambda path, _body: (503, b"") if path == RENEW_PATH else None
    with pytest.raises(Transient):
        renewal_job.renew(folder)
    asked = key_of(folder.next_key)
    assert key_of(folder.pair) == old != asked
    enrol(config, stub)  # somebody mends the drop-in meanwhile: with another key the device would be a thief
    stub.on_request = lambda _path, _body: None
    renewal_job.renew(folder)
    assert key_of(folder.pair) == asked
    assert not folder.next_key.exists()


@pytest.mark.parametrize("trouble", [errno.ENOSPC, errno.EROFS], ids=["full", "read-only"])
def test_a_disk_that_takes_nothing_more_is_said_and_costs_nothing(stub, memory, trouble):
    config = device(memory / "a")
    enrol(config, stub)
    folder = folder_of(config.parent / "state")
    before = folder.pair.read_bytes()
    failed = 0
    for at in range(30):
        disk = _Failing(memory / "a", at, trouble)
        if (words := said(disk, folder, Transient if trouble == errno.ENOSPC else Misconfigured)) is None:
            break
        failed += 1
        assert str(folder.path) in words
        usable(config)
    assert failed > 5
    assert folder.pair.read_bytes() != before
    whole(config)


def said(disk: SimDisk, folder: IdentityFiles, kind: type[Exception]) -> str | None:
    """The words of a renewal that failed; None: it did not."""
    try:
        lived(disk, renewal_job.renew, folder)
    except kind as error:
        return str(error)
    return None


class _Failing(SimDisk):
    """Has trouble from the k-th operation on."""

    def __init__(self, root: Path, at: int, trouble: int) -> None:
        super().__init__(root)
        self._at, self._kind = at, trouble

    def _begin(self, what: str, path: Path, *, writes: bool = True) -> bool:
        if self.operations >= self._at:
            self.trouble = self._kind
        return super()._begin(what, path, writes=writes)


@pytest.mark.parametrize(
    "after_issue",
    [
        pytest.param(False, id="at the request", marks=pytest.mark.long),
        pytest.param(True, id="before the answer"),
    ],
)
def test_a_real_process_killed_while_it_asks(stub, tmp_path, after_issue):
    config = device(tmp_path)
    victims = []

    def kill(path, body):
        if path != ENROL_PATH or not victims:
            return None
        if after_issue:
            stub._enrol(stub_request(body))
        os.kill(victims.pop().pid, signal.SIGKILL)
        return 503, b""

    stub.on_request = kill
    words = ["agent", "enroll", "--config", str(config), "--invite-file", "-", "--format", "json"]
    code = "import sys; from lichen.cli import main; sys.exit(main())"
    arguments = [sys.executable, "-P", "-c", code, *words]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    child = subprocess.Popen(
        arguments,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment,
    )
    victims.append(child)
    assert child.stdin is not None
    child.stdin.write(stub.invite().encode().encode())
    child.stdin.close()
    assert child.wait(30) == -signal.SIGKILL
    done = subprocess.run(
        arguments,
        input=stub.invite().encode().encode(),
        capture_output=True,
        env=environment,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    whole(config)


def stub_request(body):
    from protocol.enrolment import EnrolRequest  # noqa: PLC0415 - only here

    return EnrolRequest.model_validate_json(body)
