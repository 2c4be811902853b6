"""The tables of docs/sensors.md are taken as they stand."""

import re
import tomllib
from pathlib import Path

import pytest

from edge_agent.sources.registry import open_source
from runtime.clock import SystemClock

PAGE = (Path(__file__).resolve().parents[4] / "docs" / "sensors.md").read_text()
TABLES = [
    table
    for block in re.findall(r"^```toml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    for table in tomllib.loads(block)["source"]
]


def test_the_page_shows_every_kind_of_hardware():
    assert {table["kind"] for table in TABLES} == {"iio", "serial", "mqtt"}


@pytest.mark.parametrize("table", TABLES, ids=lambda table: "-".join([table["kind"], *table["modalities"]]))
def test_a_table_of_the_page_makes_a_source(tmp_path, table):
    source = open_source(table, "source[0]", tmp_path, None, SystemClock())
    assert set(source.channels) == set(table["modalities"])


def test_the_package_of_the_page_is_a_kind():
    (code,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    names: dict[str, object] = {}
    exec(compile(code, "docs/sensors.md", "exec"), names)  # noqa: S102 - our own page
    kind = names["KIND"]
    assert kind.make(kind.settings(), None, SystemClock()).channels == {"echo": 1}
