"""The run of each method of the study, by name. Imports torch."""

from typing import Final

from lichen_lab.benchmarks.studies.labels import federation, linear

RUNS: Final = {**federation.RUNS, **linear.RUNS}
