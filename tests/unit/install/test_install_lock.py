"""The lock of the installation: all that the extras need stands in it, pinned, with hashes."""

import re
import subprocess
import tomllib
from importlib.metadata import requires
from importlib.metadata import version as installed
from pathlib import Path

import pytest
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[3]
LOCK = ROOT / "install" / "requirements.lock"
EXTRAS = ("infer", "coordinator", "train", "export", "web", "console")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def locked() -> dict[str, tuple[str, set[str], int]]:
    """Library -> its version, the extras that need it, and how many hashes it has."""
    found = {}
    for block in LOCK.read_text().split("# for: ")[1:]:
        extras, head, *hashes = block.splitlines()
        name, version = re.match(r"([A-Za-z0-9._-]+)==([^ ]+)", head).groups()
        assert all(re.fullmatch(r"    --hash=sha256:[0-9a-f]{64}( \\)?", line) for line in hashes), name
        found[canonicalize_name(name)] = (version, set(extras.split()), len(hashes))
    return found


def wanted(extra: str, machine: str) -> dict[str, Requirement]:
    """What an extra needs itself, extras of ours within it opened."""
    found = {}
    specs = PROJECT["dependencies"] if extra == "base" else PROJECT["optional-dependencies"][extra]
    for spec in map(Requirement, specs):
        if spec.name == "lichen":
            for inner in spec.extras:
                found |= wanted(inner, machine)
        elif applies(spec.marker, machine):
            found[canonicalize_name(spec.name)] = spec
    return found


def applies(marker: Marker | None, machine: str) -> bool:
    return marker is None or marker.evaluate({"platform_machine": machine, "extra": ""})


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@pytest.mark.parametrize("extra", ["base", *EXTRAS])
def test_all_that_an_extra_needs_is_pinned_with_hashes(extra: str, machine: str) -> None:
    every, seen = locked(), set()
    waiting = list(wanted(extra, machine).values())
    while waiting:
        spec = waiting.pop()
        name = canonicalize_name(spec.name)
        pinned, extras, hashes = every[name]
        assert spec.specifier.contains(Version(pinned), prereleases=True), f"{name} {pinned}: {spec}"
        assert extra in extras, f"{name}: needed by {extra}"
        assert hashes
        # Only an installed version that is the pinned one tells what that needs: newer releases need others.
        if name not in seen and Version(installed(name)) == Version(pinned):
            further = (Requirement(one) for one in requires(name) or ())
            waiting += [one for one in further if applies(one.marker, machine) and one.name not in seen]
        seen.add(name)


def test_it_names_no_place_and_nothing_that_no_extra_needs() -> None:
    text = LOCK.read_text()
    assert not re.search(r"https?:|file:|--index|--find|/home|/tmp", text)
    assert all(extras <= {"base", *EXTRAS} and extras for _, extras, _ in locked().values())


def test_the_part_for_an_agent_is_what_base_and_infer_need(tmp_path) -> None:
    said, python = tmp_path / "said", tmp_path / "python"
    (wheel := tmp_path / "lichen-0.1.0-py3-none-any.whl").write_bytes(b"wheel")
    python.write_text(f"""#!/bin/sh
[ "$1" != -c ] || {{ echo True; exit; }}
mkdir -p "$3/bin"
printf '#!/bin/sh\\nwhile [ $# -gt 0 ]; do [ "$1" != -r ] || cat "$2" >{said}; shift; done\\n' >"$3/bin/pip"
cp "$3/bin/pip" "$3/bin/lichen"
chmod +x "$3/bin/pip" "$3/bin/lichen"
""")
    python.chmod(0o755)
    words = ["sh", str(ROOT / "install/install.sh"), "--root", str(tmp_path / "root"), "--agent"]
    subprocess.run([*words, "--python", str(python), "--wheel", str(wheel)], check=True, timeout=60)
    given = set(re.findall(r"^([A-Za-z0-9._-]+)==", said.read_text(), re.MULTILINE))
    assert given == {name for name, (_, extras, _) in locked().items() if extras & {"base", "infer"}}
    assert "torch" not in given
