"""The bench as a whole: parts to runs to rows, and the report."""

from dataclasses import dataclass
from pathlib import Path

from lichen.bench._runs import run_each
from lichen.bench.disentafl import parts
from lichen.bench.disentafl import variants as v
from lichen.bench.disentafl.one import run
from lichen.bench.disentafl.part import Results
from lichen.bench.disentafl.store import store
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
        quick: one seed, two rounds of small fleets.
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
    rows = [row for one in found for row in (*one.part.rows(one), *one.part.computed(wish.quick, say))]
    if wish.report is not None:
        from lichen.bench.disentafl.report.page import write  # noqa: PLC0415 - matplotlib, only where asked for

        write(found, rows, wish.report)
        say(f"the report is in {wish.report}")
    return rows


def results(wish: Wish, say: Say) -> list[Results]:
    """The runs of every part that is wished."""
    wanted = parts.chosen(wish.parts)
    if wish.quick:
        wanted = [part.small() for part in wanted]
    seeds = range(wish.seed, wish.seed + (1 if wish.quick else wish.seeds))
    kept = store(wish.resume, any_code=wish.any_code)
    ones = {one.key(): one for part in wanted for one in part.ones(seeds)}
    # One seed of everything before the next: what is there when somebody stops it can be compared.
    order = dict(sorted(ones.items(), key=lambda item: (item[1].seed, item[1].fleet)))
    done = run_each(order, kept, say, run, wish.workers)
    return [part.results(done, seeds, quick=wish.quick) for part in wanted]
