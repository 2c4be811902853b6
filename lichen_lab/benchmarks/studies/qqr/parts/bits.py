"""Bits of the prototypes, where a modality is missing and where one is noisy: accuracy and bytes."""

from typing import Final

from lichen_lab.benchmarks.result import Goal, ResultRow
from lichen_lab.benchmarks.studies.qqr import variants as v
from lichen_lab.benchmarks.studies.qqr.parts.quantity import HALF
from lichen_lab.benchmarks.studies.qqr.variants import Part, Results, line
from lichen_lab.benchmarks.study.part import above, usual

BITS: Final = (32, 4, 3, 2)
_UNDER: Final = f"PNR, {HALF}"
_AT_DB: Final = 10.0
_NOISY: Final = f"PLR, noise at {_AT_DB:g} dB in half of the rounds"


def name(bits: int) -> str:
    """The variant's name."""
    return f"{bits}-bit prototypes"


def _rows(results: Results) -> list[ResultRow]:
    rows = usual(results)
    for variant in results.part.variants:
        runs = results.of(variant.method, variant.under).values()
        devices, rounds = variant.spec.conditions.devices, variant.spec.setting.rounds
        for part in sorted({part for one in runs for part in one.bytes_up}):
            each = [one.bytes_up.get(part, 0) / (devices * rounds) for one in runs]
            rows += results.row(variant, f"bytes a device and round: {part}", each)
        whole = [sum(one.bytes_up.values()) / (devices * rounds) for one in runs]
        rows += results.row(variant, "bytes a device and round: all", whole)
    return rows


PART: Final = Part(
    name="bits",
    place=4,
    title="what the bits of a prototype's values cost and save",
    variants=tuple(line(name(bits), _UNDER, v.HALF, v.quantity(v.PNR, prototype_bits=bits)) for bits in BITS),
    versus=tuple((name(bits), name(32)) for bits in BITS if bits != 32),  # noqa: PLR2004 - the float32 one
    rows=_rows,
    goals=(Goal(above(name(32)), -0.3, above=True, setting=_UNDER, method=name(2)),),
)
NOISY: Final = Part(
    name="bits_noisy",
    place=17,
    title="the same where a modality is noisy",
    variants=tuple(
        line(name(bits), _NOISY, v.noisy(_AT_DB), v.quality(v.PLR, prototype_bits=bits)) for bits in BITS
    ),
    versus=PART.versus,
    rows=_rows,
    by_default=False,
)
