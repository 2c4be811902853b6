"""Whatever is absent, and whatever stands there: what is there stays to the bit, the rest is never read."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from models.knowledge_graph.networks.imputation import IMPUTERS, ImputerSettings, hidden
from models.knowledge_graph.networks.modality_vectors import masked_distance

OF = ImputerSettings(widths=(6, 4), blocks=2, steps=2, step_dim=2)
JUNK = st.sampled_from([float("nan"), float("inf"), -float("inf"), 0.0, 1e30])
MASKS = st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=6)


def case(mask, junk, seed):
    present_BP = torch.tensor([(True, *row) for row in mask])
    true_BPD = torch.randn(len(mask), 3, 2, generator=torch.Generator().manual_seed(seed))
    return present_BP, torch.where(present_BP[:, :, None], true_BPD, junk)


@pytest.mark.parametrize("kind", IMPUTERS)
@settings(max_examples=25, deadline=None)
@given(mask=MASKS, junk=JUNK, other=JUNK, seed=st.integers(0, 2**32))
def test_what_is_there_stays_and_what_is_not_is_not_read(kind, mask, junk, other, seed):
    torch.manual_seed(seed)
    imputer = IMPUTERS[kind](6, OF)
    (present_BP, h_BPD), (_, same_BPD) = case(mask, junk, seed), case(mask, other, seed)
    chance = [torch.Generator().manual_seed(seed) for _ in range(2)]
    full_BPD, again_BPD = imputer(h_BPD, present_BP, chance[0]), imputer(same_BPD, present_BP, chance[1])
    assert torch.equal(full_BPD[present_BP], h_BPD[present_BP])
    assert bool(torch.isfinite(full_BPD).all())
    assert torch.equal(full_BPD, again_BPD)
    seen_BP = hidden(present_BP, 0.5, chance[0])
    assert torch.equal(seen_BP, hidden(present_BP, 0.5, chance[1]))
    loss = imputer.loss(h_BPD, present_BP, chance[0], seen_BP)
    assert bool(torch.isfinite(loss))
    assert torch.equal(loss, imputer.loss(same_BPD, present_BP, chance[1], seen_BP))


@settings(max_examples=50, deadline=None)
@given(mask=MASKS, junk=JUNK, other=JUNK, seed=st.integers(0, 2**32))
def test_7_ignores_what_is_absent_on_either_side(mask, junk, other, seed):
    (present_BP, one_BPD), (_, two_BPD) = case(mask, junk, seed), case(mask, other, seed)
    assert float(masked_distance(one_BPD, two_BPD, present_BP)) == 0
    made_BPD = (one_BPD + 1).requires_grad_()
    loss = masked_distance(made_BPD, two_BPD, present_BP)
    assert float(loss.detach()) == pytest.approx(2 * int(present_BP.sum()) / len(mask))
    loss.backward()
    assert bool(torch.isfinite(made_BPD.grad).all())
    assert not bool(made_BPD.grad[~present_BP].any())
