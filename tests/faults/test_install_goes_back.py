"""install.sh as root on a machine with systemd: a version whose services do not start is left again.

In a mount namespace of its own, with a systemctl, users and a Python that say what they are asked.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLACES = (
    *("/opt", "/run", "/etc/systemd/system", "/etc/lichen", "/usr/local/bin", "/usr/lib/sysusers.d"),
    *("/usr/share/lichen", "/var/lib", "/var/cache"),
)
PROGRAMS = {
    # starts what the version in use can; `--version` 2 cannot
    "systemctl": """
echo "systemctl $*" >>"$SAID"
case "$*" in
*is-active*) echo active ;;
*try-restart*coordinator*) /opt/lichen/current/bin/lichen starts ;;
esac
""",
    "systemd-sysusers": "",
    "chown": "",
    "python": """
[ "$1" != -c ] || { echo True; exit; }
mkdir -p "$3/bin"
printf '#!/bin/sh\\n' >"$3/bin/pip"
cat >"$3/bin/lichen" <<END
#!/bin/sh
echo "$VERSION: \\$*" >>"$SAID"
[ "$VERSION \\$*" != "2 starts" ]
END
chmod +x "$3/bin/pip" "$3/bin/lichen"
""",
}
SCRIPT = """
set -e
tidy() { for place in $made; do umount "$place"; rmdir -p --ignore-fail-on-non-empty "$place"; done; }
trap tidy EXIT
for place in $PLACES; do
    [ -d "$place" ] || made="$place $made"
    mkdir -p "$place"
    mount -t tmpfs none "$place"
done
mkdir -p /run/systemd/system
for version in 1 2; do
    export VERSION=$version
    wheel=$WHEELS/lichen-$version-py3-none-any.whl
    sh "$INSTALL" --agent --coordinator --python python --wheel "$wheel" || status=$?
done
echo "status ${status:-0}, $(readlink /opt/lichen/current), before $(readlink /opt/lichen/previous)"
"""


def test_a_version_whose_services_do_not_start_is_left_again(tmp_path: Path) -> None:
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("SKIPPED LOUDLY: only root may mount, in a namespace of its own")
    programs, said = tmp_path / "bin", tmp_path / "said"
    programs.mkdir()
    for name, text in PROGRAMS.items():
        (programs / name).write_text(f"#!/bin/sh{text}" if text.startswith("\n") else f"#!/bin/sh\n{text}")
        (programs / name).chmod(0o755)
    for version in "12":
        (tmp_path / f"lichen-{version}-py3-none-any.whl").write_text(version)
    places = {"PLACES": " ".join(PLACES), "SAID": str(said), "WHEELS": str(tmp_path)}
    done = subprocess.run(
        ["unshare", "--mount", "--propagation", "private", "sh", "-c", SCRIPT],
        env={
            **os.environ,
            **places,
            "PATH": f"{programs}:{os.environ['PATH']}",
            "INSTALL": str(ROOT / "install/install.sh"),
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    status, current, before = done.stdout.splitlines()[-1].split(", ")
    assert status == "status 69"
    assert current.startswith("versions/1-")
    assert before.startswith("before versions/2-")
    assert "the new version does not start" in done.stdout
    lines = said.read_text().splitlines()
    put_back = lines.index("1: coordinator downgrade --config /etc/lichen/coordinator.toml")
    assert lines.index("systemctl stop lichen-coordinator") < put_back
    assert lines[-1] == "systemctl start lichen-coordinator"
