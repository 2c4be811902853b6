"""Runs of the study: each training once, with every probe that anyone asks of it."""

from dataclasses import replace

from lichen_lab.benchmarks.studies.qqr.settings import Outcome, Setting


def trained(setting: Setting) -> Outcome:
    """A run, in whatever process this is."""
    from lichen_lab.benchmarks.studies.qqr.run_spec import run  # noqa: PLC0415 - torch, only where runs are made

    return run(setting)


def every_probe(one: Setting, other: Setting) -> Setting:
    """A training that is asked what two equal ones are asked."""
    return replace(one, probes=tuple(sorted({*one.probes, *other.probes})))
