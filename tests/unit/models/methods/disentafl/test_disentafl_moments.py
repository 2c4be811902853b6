"""Adam's moments that a device keeps: what went wrong in one round must not spoil those that follow."""

from dataclasses import replace

import numpy as np
import pytest

from tests.support.methods.disentafl_cases import ALL
from tests.support.methods.disentafl_learning import learnable, on, small, train, whole


@pytest.mark.parametrize("absurd", [1e12, 1e25])
def test_a_label_that_is_absurd_once_slows_no_later_round(absurd: float) -> None:
    task = small(domains=1, keep_moments=True)
    state, windows = on(task, whole(task), ALL), learnable(task)
    wrong = windows.targets["speed"].copy()
    wrong[3] = absurd
    spoilt = train(task, replace(windows, targets={**windows.targets, "speed": wrong}), state)
    after = train(task, windows, state, spoilt.private, round_=2)
    name = "moments/last/speed"
    assert after.private[name][0] == spoilt.private[name][0], "steps are counted anew"
    assert np.isfinite(after.private[name]).all()
    assert after.private[name].max() < 1e4
    again = train(task, windows, state, after.private, round_=3)
    assert again.private[name][0] == 2 * after.private[name][0], "and then on"
