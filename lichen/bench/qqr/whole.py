"""The bench as a whole: parts to runs to rows, and the report."""

from dataclasses import dataclass, replace
from pathlib import Path

from lichen.bench.qqr import parts
from lichen.bench.qqr import variants as v
from lichen.bench.qqr.part import Results
from lichen.bench.qqr.runner import run_all
from lichen.bench.qqr.store import Store
from lichen.bench.result import Row, Say


@dataclass(frozen=True)
class Wish:
    """What a command asks for.

    Attributes:
        parts: their names; empty: all that run without being asked.
        seeds: repetitions, from ``seed`` on.
        seed: the first one.
        workers: processes; None is one a CPU.
        resume: file of finished runs; None: the cache's.
        any_code: finished runs of other versions of the code count too.
        report: write a page here.
        quick: one seed, two small rounds.
    """

    parts: tuple[str, ...] = ()
    seeds: int = v.SEEDS
    seed: int = 0
    workers: int | None = None
    resume: Path | None = None
    any_code: bool = False
    report: Path | None = None
    quick: bool = False


def quick_or_whole(quick: bool, say: Say) -> list[Row]:  # noqa: FBT001 - every benchmark's signature
    """As ``lichen bench all`` runs it."""
    return measure(Wish(quick=quick), say)


def measure(wish: Wish, say: Say) -> list[Row]:
    """Run what is wished, and write the report.

    Raises:
        Misconfigured: an unknown part, or a data set is not here.
        NotWritten: a file cannot be written.
        Transient: a worker was killed.
    """
    found = results(wish, say)
    rows = [row for one in found for row in one.part.rows(one)]
    if wish.report is not None:
        from lichen.bench.qqr.report.page import write  # noqa: PLC0415 - matplotlib, only where it is asked for

        write(found, rows, wish.report)
        say(f"the report is in {wish.report}")
    return rows


def results(wish: Wish, say: Say) -> list[Results]:
    """The runs of every part that is wished."""
    wanted = parts.chosen(wish.parts)
    if wish.quick:
        wanted = [replace(part.small(), seeds=()) for part in wanted]
    seeds = range(wish.seed, wish.seed + (1 if wish.quick else wish.seeds))
    store = Store(wish.resume, any_code=wish.any_code)
    settings = [setting for part in wanted for setting in part.settings(seeds)]
    # One seed of everything before the next: what is there when somebody stops it can be compared.
    settings.sort(key=lambda setting: setting.seed)
    done = run_all(settings, store, say, workers=wish.workers)
    return [part.results(done, seeds, quick=wish.quick) for part in wanted]
