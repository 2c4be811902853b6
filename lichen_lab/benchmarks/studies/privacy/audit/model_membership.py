"""Who was in the training, by the exported model: attacks on the last version of a fleet. Imports torch.

The attacker has the model and windows, of which half have trained. It guesses by the loss (Yeom et al. 2018),
and by a likelihood ratio to models of its own (after Carlini et al. 2022, with few of them): how much more
sure the model is of a window than models are that never saw it.
"""

import time
from typing import Final

import numpy as np

from lichen_lab.benchmarks.result import Say
from lichen_lab.benchmarks.studies.privacy.audit import rates, scores
from lichen_lab.benchmarks.studies.privacy.federation import history_of, outcome_of, task_of
from lichen_lab.benchmarks.studies.privacy.fleets import PrivacyFleet
from lichen_lab.benchmarks.studies.privacy.settings import PrivacyOutcome, PrivacySetting
from lichen_lab.simulation.training.workers import one_thread
from models.data.window_set import concat

_MODELS: Final = 4
_ROUNDS: Final = 10
_AT_ONCE: Final = 16
_REFERENCE: Final = {"epochs": 1, "batch": 32, "lr": 0.1}


def attack(fleet: PrivacyFleet, setting: PrivacySetting, seed: int, tell: Say) -> PrivacyOutcome:
    """Make a run: train a fleet, attack its model."""
    began = time.process_time()
    history = history_of(fleet, setting, seed, tell, at_once=_AT_ONCE)
    task = task_of(fleet, setting)
    members, others = concat(list(fleet.devices.values())), concat(list(fleet.others.values()))
    both, count = concat([members, others]), len(members)
    with one_thread():
        odds_B = scores.log_odds(task, history.state, both)
        plain = task.model_copy(update={"privacy": None, "config": {**task.config, **_REFERENCE}})
        rounds, models = (2, 2) if setting.rounds == 2 else (_ROUNDS, _MODELS)  # noqa: PLR2004 - a small run
        references = scores.reference_odds(plain, both, seed, rounds, models)
    outside_B = np.stack([~in_B for in_B, _ in references]).astype(np.float64)
    known_B = (outside_B * np.stack([odds for _, odds in references])).sum(axis=0) / outside_B.sum(axis=0)
    found: dict[str, float] = {}
    for name, score_B in (("loss", odds_B), ("ratio", odds_B - known_B)):
        figures = rates.figures(score_B[:count], score_B[count:])
        found |= {f"{name} {figure}": value for figure, value in figures.items()}
    found |= {
        "members": 100 * float((odds_B[:count] > 0).mean()),
        "others": 100 * float((odds_B[count:] > 0).mean()),
    }
    outcome = outcome_of(fleet, setting, history, began)
    outcome.attack.update(found)
    return outcome
