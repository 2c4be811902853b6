"""What a round costs a device: real agents and workers, a real broker, every method in three sizes.

Two tables. The first is what federation costs beyond training, with QQR's medium network. The second is a
local round of each method: CPU seconds in training, the worker's highest memory, bytes both ways.
"""

import time
from typing import Final

from lichen_lab.benchmarks.result import Bench, Goal, ResultRow, Say, figure_rows
from lichen_lab.benchmarks.suite.device import method_cases, round_cost

_AGENTS: Final = 3
_ROUNDS: Final = 6
_PAIR: Final = 2
_LOCAL_ROUNDS: Final = 4
LOCAL: Final = (
    round_cost.TRAINING,
    round_cost.WORKER_PEAK,
    round_cost.NUMBERS,
    round_cost.SENT,
    round_cost.RECEIVED,
)
"""Figures of a local round."""


def run(quick: bool, say: Say) -> list[ResultRow]:  # noqa: FBT001 - every benchmark's signature
    """Three agents and five rounds, then two agents and three rounds for each method and size.

    Quick: one agent and two rounds with QQR's medium network, then with its small one.
    """
    agents, rounds = (1, 3) if quick else (_AGENTS, _ROUNDS)
    case, began = method_cases.MEDIUM, time.perf_counter()
    found = round_cost.measure(case, rounds, agents, say)
    setting = f"{agents} agents, {rounds - 1} rounds, {method_cases.WINDOWS} windows, 1 epoch, int8"
    beyond = {
        name: values for name, values in found.items() if name not in LOCAL or name == round_cost.TRAINING
    }
    rows = figure_rows(
        "noise, 223,622 parameters", "qqr", setting, beyond, seconds=time.perf_counter() - began
    )
    agents, rounds = (1, 2) if quick else (_PAIR, _LOCAL_ROUNDS)
    for each in (method_cases.SMALLEST,) if quick else method_cases.CASES:
        began = time.perf_counter()
        found = round_cost.measure(each, rounds, agents, say)
        setting = f"{agents} agents, {rounds - 1} rounds, {each.material}, 1 epoch, int8"
        local = {name: found[name] for name in LOCAL}
        rows += figure_rows(each.size, each.method, setting, local, seconds=time.perf_counter() - began)
    return rows


BENCH: Final = Bench(name="device", run=run, goals=(Goal(round_cost.BEYOND, 0.3),))
