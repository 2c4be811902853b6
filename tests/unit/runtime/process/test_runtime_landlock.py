"""What a process cannot do any more once it has given it up; and a kernel that knows nothing of it."""

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from runtime.process import landlock

CHILD = """
import json, os, socket, sys
from pathlib import Path
from runtime.process import landlock
folder, port = Path(sys.argv[1]), int(sys.argv[2])
opened = (folder / "secret").open()
places = [Path(p) for p in {sys.prefix, sys.base_prefix, "/usr", "/lib", *sys.path} if p]
took = landlock.restrict(read=[*places, folder / "given", folder / "is not there"], write=[folder / "log"])

def tried(act):
    try:
        return act()
    except OSError as error:
        return error.errno

parent = f"/proc/{os.getppid()}"
print(json.dumps({
    "took": took,
    "given": tried(lambda: (folder / "given" / "file").read_text()),
    "secret": tried(lambda: (folder / "secret").read_text()),
    "list": tried(lambda: os.listdir(folder)),
    "given write": tried(lambda: (folder / "given" / "file").write_text("x")),
    "new": tried(lambda: (folder / "given" / "new").write_text("x")),
    "log": tried(lambda: (folder / "log").write_text("x")),
    "remove": tried(lambda: (folder / "log").unlink()),
    "parent's memory": tried(lambda: os.open(parent + "/mem", os.O_RDONLY)),
    "parent's variables": tried(lambda: Path(parent + "/environ").read_bytes().hex()),
    "connect": tried(lambda: socket.create_connection(("127.0.0.1", port), 1).close()),
    "open before": tried(opened.read),
    "wider": tried(lambda: landlock.restrict(read=[folder]) and (folder / "secret").read_text()),
}))
"""
BARE = ("setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs")
NEEDS = pytest.mark.skipif(
    not landlock.version(), reason="SKIPPED LOUDLY: this kernel has no Landlock, nothing is shown of it"
)


@NEEDS
@pytest.mark.parametrize(
    "bare", [False, True], ids=["as we are", "without a capability, as the unit starts it"]
)
def test_what_was_not_named_cannot_be_opened_any_more(*, bare: bool, tmp_path: Path) -> None:
    if bare and (os.getuid() or shutil.which(BARE[0]) is None):
        pytest.skip(
            "SKIPPED LOUDLY: only root can give up capabilities, by setpriv (apt-get install util-linux)"
        )
    (tmp_path / "given").mkdir()
    for name in ("secret", "given/file", "log"):
        (tmp_path / name).write_text(name)
    with socket_of() as listening:
        done = subprocess.run(
            [
                *(BARE if bare else ()),
                sys.executable,
                "-c",
                CHILD,
                str(tmp_path),
                str(listening.getsockname()[1]),
            ],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
            env=os.environ | {"PYTHONPATH": str(Path(landlock.__file__).parents[1])},
        )
    said = json.loads(done.stdout)
    refused = {
        "secret",
        "list",
        "given write",
        "new",
        "remove",
        "parent's memory",
        "parent's variables",
        "wider",
    }
    assert {name: said[name] for name in refused} == dict.fromkeys(refused, errno.EACCES)
    assert (said["took"], said["given"], said["log"], said["open before"]) == (
        True,
        "given/file",
        1,
        "secret",
    )
    if landlock.version() >= 4:
        assert said["connect"] == errno.EACCES
    assert (tmp_path / "given" / "file").read_text() == "given/file"


def socket_of():
    import socket  # noqa: PLC0415 - only here

    return socket.create_server(("127.0.0.1", 0))


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM])
def test_a_kernel_without_it_or_a_filter_changes_nothing(code: int, tmp_path: Path, monkeypatch) -> None:
    def call(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(landlock, "_call", call)
    assert landlock.version() == 0
    assert landlock.restrict(read=[]) is False
    (tmp_path / "file").write_text("is still written")


@pytest.mark.parametrize(
    ("version", "size", "rights"), [(1, 8, 13), (2, 8, 14), (3, 8, 15), (4, 16, 15), (7, 24, 16)]
)
def test_a_kernel_is_asked_for_what_its_version_knows(
    version: int, size: int, rights: int, monkeypatch
) -> None:
    asked = []

    def call(number: int, *arguments: object) -> int:
        asked.append((number, arguments))
        if number == landlock._CREATE_RULESET:
            return os.open("/dev/null", os.O_RDONLY) if arguments[0] else version
        return 0

    monkeypatch.setattr(landlock, "_call", call)
    monkeypatch.setattr(landlock, "_no_new_privileges", lambda: None)
    assert landlock.restrict(read=[Path("/usr")])
    attributes = asked[1][1][0]
    assert len(attributes) == size == asked[1][1][1]
    assert int.from_bytes(attributes[:8], sys.byteorder) == (1 << rights) - 1
    assert [number for number, _ in asked[2:]] == [landlock._ADD_RULE, landlock._RESTRICT_SELF]
