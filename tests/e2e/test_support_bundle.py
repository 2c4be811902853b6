"""Support bundles by the real commands: secrets of every kind that lichen has are planted; none comes out."""

import asyncio
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from protocol.enrolment import Invite
from tests.support.agent.data import write_toy
from tests.support.coordinator.fake import FLEET
from tests.support.network.brokers import broker
from tests.support.services import until

__all__ = ["broker"]
ROOT = Path(__file__).parents[2]
TOKEN = "wQ9xJk2_mP-4sT7uVbN1cZ8aLdE5fGh0RyXiOoKkWqY"  # noqa: S105 - made up
INVITE = Invite(url="https://c.example:8443", ca_sha256="5e" * 32, token=TOKEN, device="d1").encode()
PASSWORD, OTHER, HIDDEN = "correct horse", 'quote"back\\slash', "sesame-street"
ACCESS, SIGNED = "AKIAIOSFODNN7EXAMPLE", "0f3a9bd2c1e7"
SECRET_KEY = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"  # noqa: S105 - made up
FLEET_SECRET = "9b" * 31 + "c4"
MARK = 1234.5678
KEY = ec.generate_private_key(ec.SECP256R1()).private_bytes(
    serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
)
LINES = [line for line in KEY.decode().splitlines() if not line.startswith("-")]
SECRETS = [
    PASSWORD, OTHER, json.dumps(OTHER)[1:-1], HIDDEN, TOKEN, INVITE, INVITE[8:], ACCESS, SIGNED, SECRET_KEY,
    FLEET_SECRET, *LINES, str(MARK),
]  # fmt: skip
LOG = "\n".join(
    [
        "the last line of an old log",
        f"refused password={HIDDEN} for d1",
        f"login as d1 with {PASSWORD} and {OTHER}",
        f"invite {INVITE} and its token {TOKEN}",
        f"GET https://b.s3.amazonaws.com/blob?X-Amz-Credential={ACCESS}&X-Amz-Signature={SIGNED}",
        f"the secret of the fleet is {FLEET_SECRET}",
        f"aws {SECRET_KEY} of {ACCESS}",
        KEY.decode(),
    ]
)
ENV = {"AWS_ACCESS_KEY_ID": ACCESS, "AWS_SECRET_ACCESS_KEY": SECRET_KEY, "PYTHONPATH": str(ROOT)}


def lichen(*args: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "lichen.cli", *args],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        env=os.environ | ENV,
    )
    return done.returncode, done.stdout + done.stderr


def parts_of(file: Path) -> dict[str, bytes]:
    """The parts, after all bytes of the archive were searched for secrets."""
    assert file.stat().st_mode & 0o777 == 0o600
    with tarfile.open(file) as archive:
        found = {}
        for entry in archive.getmembers():
            data = archive.extractfile(entry)
            assert data is not None
            found[entry.name.removeprefix("support/")] = data.read()
    everything = b"\n".join([*found.values(), *(name.encode() for name in found)])
    wanted = [*(secret.encode() for secret in SECRETS), np.float32(MARK).tobytes()]
    assert not [one for one in wanted if one in everything]
    assert len(everything) < 2_000_000
    return found


def agent_folder(folder: Path, port: int) -> Path:
    write_toy(folder, 60)
    with np.load(folder / "toy.npz") as old:
        values = {name: old[name] for name in old.files}
    for name, value in values.items():
        if value.dtype == np.float32:
            values[name] = np.full_like(value, MARK)
    np.savez(folder / "toy.npz", **values)
    (folder / "password").write_text(f"{PASSWORD}\n")
    (folder / "other").write_text(f"{OTHER}\n")
    (folder / "agent.log").write_text(LOG)
    (folder / "agent.d").mkdir()
    (folder / "agent.d" / "10-site.toml").write_text(
        f'[infer.mqtt]\nport = {port}\nusername = "d1"\npassword_file = "{folder}/other"\n'
    )
    identity = folder / "state" / "identity"
    identity.mkdir(parents=True)
    (identity / "fleet.secret").write_text(FLEET_SECRET)
    (identity / "next-key.pem").write_bytes(KEY)
    (folder / "cache" / "page").mkdir(parents=True)
    (folder / "cache" / "page" / "key").write_bytes(np.float32(MARK).tobytes() * 8)
    path = folder / "agent.toml"
    path.write_text(
        f'fleet = "{FLEET}"\ndevice = "d1"\nstate_dir = "state"\ncache_dir = "cache"\n'
        f'[mqtt]\nport = {port}\nusername = "d1"\npassword_file = "password"\n'
        '[[source]]\nkind = "replay"\nfile = "toy.npz"\nloop = true\n'
    )
    return path


def support(config: Path, name: str) -> dict[str, bytes]:
    file, log = config.with_name(name), config.with_name("agent.log")
    status, said = lichen(
        "agent", "support", str(file), "--config", str(config), "--log", str(log), "--format", "json"
    )
    assert status == 0, said
    return parts_of(file)


@pytest.mark.long
async def test_of_an_agent_that_runs_and_then_is_stopped_and_damaged(broker, tmp_path):
    config = agent_folder(tmp_path, broker.port)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "lichen.cli", "agent", "run", "--config", str(config)),
        cwd=ROOT,
        stderr=asyncio.subprocess.DEVNULL,
        env=os.environ | ENV,
    )
    try:
        await until((tmp_path / "cache" / "status.json").exists, 60)
        parts = await asyncio.to_thread(support, config, "running.tar.gz")
    finally:
        process.terminate()
        await process.wait()
    assert json.loads(parts["status.json"])["result"]["running"] is True
    assert any("connected" in text for _, _, text in json.loads(parts["last_lines.json"])["lines"])
    assert b"the last line of an old log" in parts["log.txt"]
    assert json.loads(parts["settings.json"])["mqtt"]["password_file"] == str(tmp_path / "password")
    assert json.loads(parts["configuration.json"])[str(config)]["fleet"] == FLEET
    assert {one["check"] for one in json.loads(parts["doctor.json"])["result"]["findings"]} > {"disk.secrets"}
    stored = json.loads(parts["databases.json"])
    assert "carry" in str(stored["state_dir/spool.sqlite3"]["schema"])
    assert json.loads(parts["folders.json"])["state_dir"]["files"]["identity"] == 3
    assert json.loads(parts["versions.json"])["packages"]["lichen"]

    again, said = lichen("agent", "support", str(tmp_path / "running.tar.gz"), "--config", str(config))
    assert (again, "exists; name a new file" in said) == (78, True)

    for file in (*(tmp_path / "state").glob("*.sqlite3"), tmp_path / "cache" / "status.json"):
        file.write_bytes(b"SQLite format 3\0" + os.urandom(5000))
    parts = await asyncio.to_thread(support, config, "damaged.tar.gz")
    assert b"status.json cannot be read" in parts["why.txt"]
    assert "error" in json.loads(parts["databases.json"])["state_dir/spool.sqlite3"]
    assert b"the agent does not answer" in parts["last_lines.json"]
    assert b"the last line of an old log" in parts["log.txt"]


@pytest.mark.long
def test_of_an_agent_whose_configuration_is_wrong(tmp_path):
    config = agent_folder(tmp_path, 1)
    config.write_text(config.read_text() + f'\n[mqtt2]\npassword = "{HIDDEN}"\n')
    file, log = tmp_path / "a.tar.gz", tmp_path / "agent.log"
    log.write_text(f"refused password={HIDDEN} and {HIDDEN}; {INVITE}")
    args = ("--config", str(config), "--log", str(log))
    assert lichen("agent", "support", str(file), *args)[0] == 0
    parts = parts_of(file)
    assert b"mqtt2" in parts["check.json"]
    assert json.loads(parts["configuration.json"])[str(config)]["mqtt2"] == {"password": "[removed]"}
    config.write_text(f'fleet = "f\n[mqtt]\npassword = "{HIDDEN}"\n')
    log.write_text("nothing")
    assert lichen("agent", "support", str(tmp_path / "b.tar.gz"), *args)[0] == 0
    assert b"password" in parts_of(tmp_path / "b.tar.gz")["configuration.json"]


def coordinator_folder(folder: Path, extra: str = "") -> Path:
    (folder / "task.toml").write_text(
        'name = "t"\nlabels = ["a", "b"]\n[[modalities]]\nname = "acc"\nchannels = 3\nrate_hz = 50\n'
    )
    (folder / "password").write_text(f"{PASSWORD}\n")
    (folder / "credentials").write_text(
        f"[default]\naws_access_key_id = {ACCESS}\naws_secret_access_key = {SECRET_KEY}\n"
    )
    (folder / "coordinator.log").write_text(LOG.replace(FLEET_SECRET, "").replace(OTHER, ""))
    config = folder / "coordinator.toml"
    config.write_text(
        f'fleet = "{FLEET}"\nstate_dir = "state"\ntask = "task.toml"\n'
        '[mqtt]\nport = 1\nusername = "c"\npassword_file = "password"\n'
        f'[storage]\ncredentials = "credentials"\n{extra}'
    )
    return config


@pytest.mark.long
def test_of_a_coordinator_with_an_authority_and_a_root(tmp_path):
    config = coordinator_folder(tmp_path)
    for args in (
        ("init", "--host", "localhost"),
        ("trust", "init", "--root-key", str(tmp_path / "root.pem")),
    ):
        status, said = lichen("coordinator", *args, "--config", str(config))
        assert status == 0, said
    keys = [*(tmp_path / "state").rglob("*.pem"), tmp_path / "root.pem"]
    planted = [line for key in keys for line in private_lines(key)]
    assert len(planted) >= 4
    (tmp_path / "coordinator.log").write_text(LOG_OF_KEYS + "\n".join(planted[:-1]))
    file = tmp_path / "c.tar.gz"
    status, said = lichen(
        *("coordinator", "support", str(file), "--config", str(config)),
        *("--log", str(tmp_path / "coordinator.log")),
    )
    assert status == 0, said
    parts = parts_of(file)
    everything = b"".join(parts.values()).decode()
    assert not [line for line in planted if line in everything]
    assert "identity.sqlite3" in str(json.loads(parts["databases.json"]))
    assert json.loads(parts["check.json"])["result"]["fleet"] == FLEET
    assert b"the last line of an old log" in parts["log.txt"]


LOG_OF_KEYS = LOG.replace(FLEET_SECRET, "").replace(OTHER, "").replace(KEY.decode(), "")


def private_lines(file: Path) -> list[str]:
    _, begin, rest = file.read_text().partition("PRIVATE KEY-----\n")
    return rest.partition("-----END")[0].split() if begin else []


@pytest.mark.long
@pytest.mark.parametrize("url", [f"postgresql://ann:{HIDDEN}@127.0.0.1:1/lichen"])
def test_of_a_coordinator_whose_database_cannot_be_reached(tmp_path, url):
    config = coordinator_folder(tmp_path, f'url = "{url}"\nconnect_timeout_s = 2\n')
    file = tmp_path / "c.tar.gz"
    status, said = lichen("coordinator", "support", str(file), "--config", str(config))
    assert status == 0, said
    parts = parts_of(file)
    assert b"could not be made" in parts["tables.json"]
    assert HIDDEN not in said
    assert json.loads(parts["settings.json"])["storage"]["schema_name"] == ""
