"""The last lines of a log: within bytes, with level, without secrets, and safe for a terminal."""

import logging

import pytest
import structlog

from runtime.diagnosis.recent_lines import MAX_TEXT, RecentLines
from runtime.logs import configure
from runtime.settings.load import LogSettings


@pytest.fixture(autouse=True)
def _logging_as_it_was():
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    structlog.reset_defaults()
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.mark.parametrize("form", ["json", "console"])
def test_lines_are_stored_with_level_and_values_and_written_as_before(capsys, form):
    recent = RecentLines(wall=lambda: 5.0)
    configure(LogSettings(format=form), recent)
    log = structlog.get_logger("x")
    log.debug("not written")
    log.warning("refused", topic="a/b", why="it\x1b[31m\nis red")
    logging.getLogger("library").error("careful %s", "now")
    try:
        int("password=hunter22")
    except ValueError:
        log.exception("failed")
    one, two, three = recent.newest(10_000, 10)
    assert (one.at, one.level, one.text) == (5.0, "warning", "refused topic=a/b why=it [31m is red")
    assert (two.level, two.text.split()[:2]) == ("error", ["careful", "now"])
    assert three.level == "error"
    assert "ValueError" in three.text
    assert "hunter22" not in three.text
    assert recent.count == 3
    written = capsys.readouterr().err
    assert "refused" in written
    assert "ValueError" in written


def test_the_newest_lines_stay_within_the_bytes():
    recent = RecentLines(5000)
    for n in range(1000):
        recent(None, "info", {"event": f"line {n} {'x' * (n % 90)}", "level": "info"})
    stored = recent.newest(10**9, 10**9)
    assert sum(line.size for line in stored) <= 5000
    assert stored[-1].text.startswith("line 999")
    assert len(recent.newest(10**9, 3)) == 3
    assert sum(line.size for line in recent.newest(700, 99)) <= 700
    recent(None, "info", {"event": "y" * 10**6, "level": "info"})
    assert len(recent.newest(10**9, 9)[-1].text) <= MAX_TEXT
