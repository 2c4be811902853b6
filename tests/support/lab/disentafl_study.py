"""Made-up runs of ``lichen bench disentafl``."""

import numpy as np

from lichen_lab.benchmarks.studies.disentafl.settings import DisentAflOutcome, DisentAflRun
from lichen_lab.benchmarks.studies.disentafl.variants import LOCAL


def made_up(one: DisentAflRun) -> DisentAflOutcome:
    """An outcome of four devices of two kinds that depends only on the run."""
    rng = np.random.default_rng(int(one.key(), 16) % 2**32)
    names = ("d00", "d01", "d02", "d03")
    personal = {name: {"label": float(rng.uniform(50, 90))} for name in names}
    return DisentAflOutcome(
        personal=personal,
        aggregate=None if one.method == LOCAL else personal,
        by_round=[(one.setting.rounds // 2, 50.0), (one.setting.rounds, 60.0)],
        bytes_up=dict.fromkeys(names, 100.0),
        bytes_down=dict.fromkeys(names, 400.0),
        seconds=1.0,
        kinds={name: ("m0 > label", "m1 > label")[at % 2] for at, name in enumerate(names)},
    )
