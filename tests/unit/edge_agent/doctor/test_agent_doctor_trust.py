"""What the doctor says about the root of the fleet's signatures."""

import pytest

from edge_agent.config.agent import read
from edge_agent.doctor.checks import trust_root
from edge_agent.doctor.checks.trust_root import Rooted
from edge_agent.identity.files import folder_of
from runtime.process import time_limit
from tests.support.identity import trust
from tests.unit.edge_agent.messaging.test_agent_session import BASIC, config

NOW = trust.NOW


def looked(settings):
    [finding] = trust_root.judge(trust_root.probe(settings), infers=settings.infer.enabled, wall=NOW)
    assert finding.check == "trust.root"
    assert bool(finding.todo) == (finding.level != "ok")
    return finding


def settings_of(tmp_path, text=""):
    return read(config(tmp_path, text=text + BASIC))


def test_without_a_root_models_are_taken_unsigned_and_that_is_doubtful_where_models_run(tmp_path):
    finding = looked(settings_of(tmp_path))
    assert (finding.level, "unsigned" in finding.seen) == ("warn", True)
    assert "trust_file" in finding.todo
    [finding] = trust_root.judge(Rooted(), infers=False, wall=NOW)
    assert finding.level == "ok"


def test_the_root_that_came_with_enrolment_is_verified(tmp_path):
    settings = settings_of(tmp_path)
    path = folder_of(settings.state_dir).root
    path.parent.mkdir(parents=True)
    path.write_bytes(trust.root(trust.Keys(threshold=2), version=3))
    finding = looked(settings)
    assert finding.level == "ok"
    assert f"{path}: root 3, signed by 2 of its keys, is sound; only signed" in finding.seen
    [later] = trust_root.judge(trust_root.probe(settings), infers=True, wall=NOW + 2 * 365 * trust.DAY_S)
    assert later.level == "ok"
    assert "expired on 20" in later.seen


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "is not there"),
        (b"{}", "is no root of a fleet"),
        (trust.root(by=(3,)), "0 of its signatures are by keys of root 1"),
    ],
)
def test_a_root_that_would_keep_the_agent_from_starting_is_78(tmp_path, content, words):
    path = tmp_path / "root.json"
    if content is not None:
        path.write_bytes(content)
    finding = looked(settings_of(tmp_path, f"trust_file = '{path}'\n"))
    assert (finding.level, finding.code) == ("fail", 78)
    assert words in finding.seen
    assert str(path) in finding.seen


def test_a_library_that_dies_of_a_signal_is_no_verdict_on_the_root(tmp_path, monkeypatch):
    path = tmp_path / "root.json"
    path.write_bytes(trust.root())
    settings = settings_of(tmp_path, f"trust_file = '{path}'\n")
    monkeypatch.setattr(trust_root, "_LOOK", "import os, signal; os.kill(os.getpid(), signal.SIGILL)")
    finding = looked(settings)
    assert (finding.level, finding.code) == ("fail", 69)
    assert "could not be verified: exit status -4" in finding.seen
    assert "imports.cryptography" in finding.todo
    monkeypatch.setattr(trust_root, "_LOOK", "import time; time.sleep(60)")
    monkeypatch.setattr(trust_root, "TIMEOUT_S", 0.2)
    assert "no answer" in looked(settings).seen


def test_the_doctor_itself_does_not_load_the_library_that_verifies(tmp_path):
    (tmp_path / "root.json").write_bytes(trust.root())
    settings_of(tmp_path, "trust_file = 'root.json'\n")
    code = (
        "import sys; from pathlib import Path; from edge_agent.config.agent import read; "
        "from edge_agent.doctor.checks import trust_root as root; "
        f"found = root.probe(read(Path({str(tmp_path / 'agent.toml')!r}))); "
        "print(found); sys.exit(found.version != 1 or 'cryptography' in sys.modules)"
    )
    status, said = time_limit.child(code, 60.0)
    assert status == 0, said
