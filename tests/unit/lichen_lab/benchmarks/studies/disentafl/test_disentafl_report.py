"""The report of ``lichen bench disentafl`` on made-up runs."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lichen_lab.benchmarks.result import ResultRow
from lichen_lab.benchmarks.studies.disentafl import STUDY, report
from lichen_lab.benchmarks.studies.disentafl import variants as v
from lichen_lab.benchmarks.studies.disentafl.parts import cost
from lichen_lab.benchmarks.studies.disentafl.parts.cost import Cost
from lichen_lab.benchmarks.studies.disentafl.report import PAGE
from lichen_lab.benchmarks.studies.disentafl.variants import Results
from lichen_lab.benchmarks.study.part import Part
from lichen_lab.benchmarks.study.report.sheets import Sheet, pivot
from tests.support.lab.disentafl_study import made_up
from tests.support.lab.pages import check_whole

SEEDS = (0, 1)
parts = STUDY.parts
SPENT = Cost(down=400.0, up=100.0, holds=800, supernet=2000, whole=900, group=300)
COMPUTED = [row for size in cost.sizes() for row in cost.rows_of(size, SPENT)]


def finished(part: Part[Any, Any], fleets: Sequence[str] = v.FLEETS) -> Results:
    part = replace(part, variants=tuple(one for one in part.variants if one.spec.fleet in fleets))
    return part.results({one.key(): made_up(one) for one in part.specs(SEEDS)}, SEEDS)


@pytest.mark.long
def test_the_page_is_whole_and_fetches_nothing(tmp_path: Path) -> None:
    results = [finished(part, (v.VEHICLE, v.MERGE_FA)) for part in STUDY.chosen(())]
    results = [replace(one, computed=COMPUTED) if one.part.name == "cost" else one for one in results]
    rows = [row for one in results for row in one.rows()]
    PAGE.write(results, rows, tmp_path / "new" / "page.html")
    page = (tmp_path / "new" / "page.html").read_text()
    check_whole(page)
    assert all(f'id="part-{one.part.name}"' in page for one in results)
    assert re.search(r'class="(good|bad)">(met|missed)<', page)
    # kinds of device have a table of their own, and what was computed stands in its part
    assert "m0 &gt; label" in page
    assert page.index('id="part-cost"') < page.index(cost.USUAL.words, page.index('id="part-cost"'))


def test_a_page_of_one_quick_part_says_so() -> None:
    small = parts["bytes"].small()
    results = small.results({one.key(): made_up(one) for one in small.specs((0,))}, (0,), quick=True)
    assert "its figures mean nothing" in PAGE.html([results], small.rows(results))


def test_the_part_that_must_be_asked_for_has_a_page_too() -> None:
    tune = finished(parts["tune"], (v.VEHICLE,))
    assert "<svg" in PAGE.html([tune], tune.part.rows(tune))


def test_kinds_are_coloured_by_what_they_have_alone() -> None:
    sheet = Sheet("", ("Local", "A", "B", "C", "D"), (("k", (50.0, 60.0, 40.0, None, 50.0)),), local=0)
    values = sheet.lines[0][1]
    assert [sheet.colour(values, place) for place in range(5)] == ["", "good", "bad", "", ""]
    assert Sheet("", ("A",), ()).colour((1.0,), 0) == ""


def test_a_pivot_puts_every_row_into_one_cell() -> None:
    rows = [
        ResultRow("f", method, "all", f"bytes {way} a round: {kind}", value)
        for method, kind, way, value in [
            ("A", "k0", "up", 1.0),
            ("A", "k0", "down", 2.0),
            ("A", "k1", "up", 3.0),
            ("B", "k0", "up", 4.0),
        ]
    ]
    sheet = pivot(rows, report.by_kind)
    assert sheet.columns == ("A: bytes up a round", "A: bytes down a round", "B: bytes up a round")
    assert sheet.lines == (("k0", (1.0, 2.0, 4.0)), ("k1", (3.0, None, None)))


def test_the_sheet_of_kinds_is_the_mean_over_seeds_and_devices() -> None:
    table = finished(parts["table"])
    fleet = table.part.variants[0].spec.fleet
    sheet = report.kinds(table, fleet)
    assert sheet is not None
    runs = table.of(sheet.columns[1], dataset=fleet)
    wanted = [one.personal[name]["label"] for one in runs.values() for name in ("d00", "d02")]
    found = dict(sheet.lines)["m0 > label"][1]
    assert found is not None
    assert abs(found - sum(wanted) / len(wanted)) < 1e-9
    assert report.kinds(table, "no such fleet") is None
