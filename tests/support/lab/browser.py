"""Measures pages in a real browser: Debian's Chromium, headless, without a network."""

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--allow-file-access-from-files",
    "--virtual-time-budget=2000",
)
_PAGE = """<!doctype html><body>
{frames}
<script>
onload = () => {{
  const look = (frame) => {{ const document = frame.contentDocument; return ({look}); }};
  const found = Object.fromEntries([...document.querySelectorAll("iframe")].map((f) => [f.width, look(f)]));
  const out = document.createElement("pre"); out.id = "found"; out.textContent = JSON.stringify(found);
  document.body.replaceChildren(out);
}};
</script>"""


def at_widths(page: Path, widths: tuple[int, ...], look: str, folder: Path) -> dict[int, Any]:
    """The value of a JavaScript expression in a page that is shown at several widths.

    Args:
        page: an HTML file.
        widths: CSS pixels.
        look: an expression over ``document``; its value must be JSON.
        folder: for the browser's own files.
    """
    assert CHROMIUM is not None
    frames = "\n".join(f'<iframe src="{page.as_uri()}" width="{w}" height="900"></iframe>' for w in widths)
    outer = folder / "outer.html"
    outer.write_text(_PAGE.format(frames=frames, look=look))
    command = [CHROMIUM, *_FLAGS, f"--user-data-dir={folder / 'profile'}", "--dump-dom", outer.as_uri()]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    found = re.search(r'<pre id="found">(.*?)</pre>', shown, re.DOTALL)
    assert found, shown[-2000:]
    return {int(width): value for width, value in json.loads(html.unescape(found[1])).items()}
