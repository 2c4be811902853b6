"""Protected rounds in the simulated world: is a safeguard missed that is taken out of the real code?

Each mutation is noticed in the first seeds of a kind of worlds; the same seeds pass with the code as it is.
"""

import re
import secrets
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import coordinator.aggregation.fold
import coordinator.ingest.verifier
import edge_agent.secure_aggregation.masking
import edge_agent.secure_aggregation.service
import edge_agent.tasks.task_store
import models.privacy.noisy_fold
from coordinator.aggregation.round_fold import FoldResult, RoundFold
from coordinator.aggregation.secure import rounds
from coordinator.aggregation.secure.rounds import SecureRounds
from coordinator.privacy.account_store import AccountStore
from coordinator.privacy.noise_secret import NoiseSecret
from coordinator.secure_aggregation.book import AttemptBook
from coordinator.storage.update_journal import Journal
from edge_agent.secure_aggregation import transitions
from edge_agent.secure_aggregation.events import SurvivorsCame
from edge_agent.secure_aggregation.noise_account import NoiseAccount
from lichen_lab.simulation.deterministic.outcome import WorldOutcome
from lichen_lab.simulation.deterministic.protected import fleet
from lichen_lab.simulation.deterministic.protected.plan import draw_private, draw_secure, draw_shared
from lichen_lab.simulation.deterministic.protected.secure_truth import SecureTruth
from lichen_lab.simulation.deterministic.scenario.scenario import Scenario
from lichen_lab.simulation.deterministic.world import run_seed
from models.privacy.noisy_fold import RoundNoise
from models.privacy.shared_noise import SharedNoise
from protocol.secure_aggregation.keys import KEY_BYTES, Secrets
from protocol.secure_aggregation.ring import packed
from tests.support.secure.mutations import both_shares, keys_of_the_first_attempt, no_own_mask, use_handler

pytestmark = pytest.mark.long

SEEDS = 16
Patch = Callable[[pytest.MonkeyPatch], None]
Draw = Callable[[int], Scenario]


def a_share_before_it_is_stored(patch: pytest.MonkeyPatch) -> None:
    """A device answers, and stores what it has answered later, or never."""

    def at_once(rules: Any, state: Any, event: SurvivorsCame) -> Any:
        new, commands = transitions.reveal(rules, state, event)
        return state, () if new is state else commands

    use_handler(patch, "reveal", at_once)


def a_second_sum_from_one_version(patch: pytest.MonkeyPatch) -> None:
    """A sum that stays closed after devices were asked is tried once more, and devices help again.

    The hostile device's vectors are random numbers, so that no sum can be used.
    """
    patch.setattr(fleet, "_GARBAGE", 1.0)
    fold, invite = SecureRounds.fold, transitions.invite

    async def again(self: SecureRounds, round_: int, state: Any, entries: Any, limits: Any) -> Any:
        made, devices = await fold(self, round_, state, entries, limits)
        if not devices:
            raise rounds._unusable(entries, "once more")
        return made, devices

    patch.setattr(SecureRounds, "fold", again)
    use_handler(patch, "invite", lambda rules, state, event: invite(rules, replace(state, opened=""), event))


def no_mask_at_all(patch: pytest.MonkeyPatch) -> None:
    """Vectors are sent as they are, and the observer looks at the journal's bytes alone."""
    service = edge_agent.secure_aggregation.service
    patch.setattr(service, "masked_vector", lambda vector_N, _plan, bits: packed(vector_N, bits))
    patch.setattr(SecureTruth, "_without_masks", lambda _self, _device, _state, masked: masked)
    patch.setattr(AttemptBook, "remove_masks", lambda *_: None)


def a_closed_sum_that_nobody_hears_of(patch: pytest.MonkeyPatch) -> None:
    """Where a sum stays closed, its updates stay accepted; the hostile device's vectors spoil every sum."""
    patch.setattr(fleet, "_GARBAGE", 1.0)
    patch.setattr(Journal, "mark_lost", lambda *_: None)


def clip_not_checked(patch: pytest.MonkeyPatch) -> None:
    """The coordinator takes updates of any length."""
    for module in (coordinator.aggregation.fold, coordinator.ingest.verifier):
        patch.setattr(module, "check_clipped", lambda *_: None)


def no_noise(patch: pytest.MonkeyPatch) -> None:
    """A version is the mean of its updates."""
    patch.setattr(RoundNoise, "add", lambda *_: None)


def new_noise_in_a_repeated_fold(patch: pytest.MonkeyPatch) -> None:
    """The first fold of a round has the noise of its secret; each further one has fresh noise."""
    round_noise, known = NoiseSecret.round_noise, set[str]()

    def drawn(self: NoiseSecret, task: Any, round_: int, base: str, privacy: Any = None) -> Any:
        noise = round_noise(self, task, round_, base, privacy)
        if noise is None or base not in known:
            known.add(base)
            return noise
        return replace(noise, key=secrets.token_bytes(32))

    patch.setattr(NoiseSecret, "round_noise", drawn)


def half_the_noise(patch: pytest.MonkeyPatch) -> None:
    """The noise is that of half the clip, in the coordinator and in what the observer draws once more."""
    sigma_of = models.privacy.noisy_fold.sigma_of
    patch.setattr(models.privacy.noisy_fold, "sigma_of", lambda *its: sigma_of(*its) // 2)


def no_account(patch: pytest.MonkeyPatch) -> None:
    """A version is recorded without its account."""
    patch.setattr(AccountStore, "write", lambda *_: None)


def beyond_the_largest_epsilon(patch: pytest.MonkeyPatch) -> None:
    """Rounds go on when the next version exceeds ``max_epsilon``."""
    patch.setattr("coordinator.rounds.worker.why_last", lambda *_: "")
    patch.setattr("coordinator.recovery.folder_owner.releases_within", lambda _, wanted, *_rest: wanted)


def no_training_after_the_sum(patch: pytest.MonkeyPatch) -> None:
    """A guided round is not finished at the coordinator."""

    async def finish(_self: RoundFold, _round: int, folded: Any, reference: Any) -> FoldResult:
        return FoldResult(folded, reference)

    patch.setattr(RoundFold, "finish", finish)


def no_noise_of_devices(patch: pytest.MonkeyPatch) -> None:
    """Devices mask their updates as they are."""
    masking = edge_agent.secure_aggregation.masking
    patch.setattr(masking, "noise_of", lambda _noise, vector_N: np.zeros_like(vector_N))


def one_key_of_noise(patch: pytest.MonkeyPatch) -> None:
    """Each device draws the same noise in each attempt, so the difference of two sums has none."""
    of = Secrets.of
    patch.setattr(Secrets, "of", lambda entropy: replace(of(entropy), noise=bytes(KEY_BYTES)))


def half_the_noise_of_devices(patch: pytest.MonkeyPatch) -> None:
    """The share of each is half as large, on all sides."""
    of = SharedNoise.of
    patch.setattr(SharedNoise, "of", lambda *its: replace(of(*its), sigma=of(*its).sigma // 2))


def sums_that_no_device_counts(patch: pytest.MonkeyPatch) -> None:
    """The device's account stays empty."""
    patch.setattr(NoiseAccount, "charge", lambda *_: None)


def floors_that_nobody_asks_for(patch: pytest.MonkeyPatch) -> None:
    """A device takes any task."""
    patch.setattr(edge_agent.tasks.task_store, "require_protected", lambda *_: None)


MUTATIONS: dict[Patch, tuple[Draw, str]] = {
    keys_of_the_first_attempt: (draw_secure, "a mask is used again"),
    both_shares: (draw_secure, "tells both shares of"),
    a_share_before_it_is_stored: (draw_secure, "tells shares, and its disk does not say"),
    a_second_sum_from_one_version: (draw_secure, "helps with a second sum from one version"),
    a_closed_sum_that_nobody_hears_of: (
        draw_secure,
        "updates of .* are not withdrawn|accepted update .* is gone",
    ),
    no_own_mask: (draw_secure, "does not have the agreed masks"),
    no_mask_at_all: (draw_secure, "deviations from uniform bytes"),
    no_training_after_the_sum: (draw_secure, "is not the fold of"),
    no_noise_of_devices: (draw_shared, "does not have the agreed masks"),
    one_key_of_noise: (draw_shared, "draws noise from a key that served before"),
    half_the_noise_of_devices: (draw_shared, "the noise of .* is .* steps, and not"),
    sums_that_no_device_counts: (draw_shared, "its account has a rho of 0, not of"),
    clip_not_checked: (draw_private, "update counts, and it has the norm"),
    no_noise: (draw_private, "the noise of version . is 0 clips"),
    half_the_noise: (draw_private, "the noise of version . is .* clips, and not"),
    new_noise_in_a_repeated_fold: (draw_private, "was folded twice from the same updates, with other noise"),
    no_account: (draw_private, "has no account of its privacy"),
    beyond_the_largest_epsilon: (draw_private, "has epsilon .*, over"),
    floors_that_nobody_asks_for: (draw_private, "takes part in round .*: its owner"),
}
"""Mutation -> the worlds that notice, and what they say."""


def first_failure(draw: Draw) -> WorldOutcome | None:
    """The first world that fails; None: none does."""
    outcomes = (run_seed(seed, scenario=draw(seed)) for seed in range(SEEDS))
    return next((one for one in outcomes if one.violation), None)


@pytest.mark.parametrize("mutate", MUTATIONS, ids=lambda patch: patch.__name__)
def test_world_a_missing_protection_is_seen(mutate: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    draw, words = MUTATIONS[mutate]
    mutate(monkeypatch)
    found = first_failure(draw)
    assert found is not None, f"{SEEDS} seeds pass without it: the simulation is blind to this"
    assert re.search(words, found.violation)


@pytest.mark.parametrize("draw", [draw_secure, draw_private, draw_shared])
def test_world_the_same_seeds_pass_with_every_protection(draw: Draw) -> None:
    found = first_failure(draw)
    assert found is None, f"seed {found.seed}: {found.violation}"
