"""Devices that add their noise: what the sum is, what a restart sends, and what a device refuses."""

import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path

import cbor2
import numpy as np
import pytest
from numpy.typing import NDArray

from coordinator.secure_aggregation.events import KeysCame, SecurePhase, SecureRules, SecureState
from coordinator.secure_aggregation.table import apply as apply_coordinator
from edge_agent.secure_aggregation import record
from edge_agent.secure_aggregation.events import (
    IDLE,
    AttemptEnded,
    MaskingInvited,
    MaskingPhase,
    MaskingRules,
    MaskingState,
    UpdateMasked,
)
from edge_agent.secure_aggregation.masking import noise_of
from edge_agent.secure_aggregation.shared_noise import check_shared, check_spent, key_of
from edge_agent.secure_aggregation.table import apply
from edge_agent.secure_aggregation.transitions import mask_plan
from lichen_lab.simulation.secure_rounds.driver import play
from lichen_lab.simulation.secure_rounds.fleet import attempt_of, fleet_of
from models.privacy.shared_noise import SharedNoise, shared_noise
from protocol.errors import Refused
from protocol.secure_aggregation.keys import Secrets
from protocol.secure_aggregation.messages import SecureMessage as AnyMessage
from protocol.secure_aggregation.ring import to_numbers, to_words
from protocol.tasks.folding import Privacy, SecureAggregation
from tests.support.secure.world import STATE, TASK, SecureWorld

PRIVACY = Privacy(clip=1.0, noise_multiplier=1.0)
OPTIONS = SecureAggregation(identities="none", min_devices=4)
NOISE = SharedNoise.of(PRIVACY, OPTIONS)
PRIVATE = TASK.model_copy(update={"privacy": PRIVACY, "secure_aggregation": OPTIONS})
SIZE = 20_000


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[SecureWorld]:
    made = SecureWorld(tmp_path, task=PRIVATE)
    yield made
    await made.close()


def vectors() -> dict[str, NDArray[np.int64]]:
    """Of length ``clip``, in whole steps."""
    rng, found = np.random.default_rng(3), {}
    for n in range(6):
        x = rng.normal(0, 1, SIZE)
        found[f"d{n}"] = np.trunc(x / np.linalg.norm(x) * 2**OPTIONS.fraction_bits).astype(np.int64)
    return found


@pytest.mark.parametrize("lost", [(), ("d4", "d5")])
def test_the_sum_is_that_of_clipped_updates_and_noise_of_the_claimed_variance(lost: tuple[str, ...]) -> None:
    plain = vectors()
    words = {name: to_words(x, OPTIONS.ring_bits) for name, x in plain.items()}
    coordinator, devices = fleet_of(words, OPTIONS, noise=NOISE)
    play(coordinator, devices, {"masked": lost})
    assert coordinator.state.phase is SecurePhase.DONE, coordinator.state.why
    inside = sorted(coordinator.state.survivors)
    assert len(inside) == 6 - len(lost)
    assert coordinator.total_N is not None
    total = to_numbers(coordinator.total_N, OPTIONS.ring_bits)
    added = total - sum(plain[name] for name in inside)
    keys = {name: mask_plan(devices[name].rules, devices[name].state).noise or (b"", 0) for name in inside}
    shares = [to_numbers(noise_of(keys[name], words[name]), OPTIONS.ring_bits) for name in inside]
    np.testing.assert_array_equal(added, np.sum(shares, axis=0))  # to the bit
    clip = PRIVACY.clip * 2**OPTIONS.fraction_bits
    wanted = PRIVACY.noise_multiplier * clip * np.sqrt(len(inside) / OPTIONS.min_devices)
    assert added.std() == pytest.approx(wanted, rel=0.03)  # 6 standard errors
    assert abs(added.mean()) < 5 * wanted / np.sqrt(SIZE)
    assert len({key for key, _ in keys.values()}) == len(inside), "each has its own key"


async def test_a_version_is_the_mean_of_clipped_updates_with_the_devices_noise(world: SecureWorld) -> None:
    world.start()
    await world.until(lambda: len(world.entries) == 4)
    made, devices = await world.close_round()
    assert devices == tuple(world.names)
    plain, bits = world.plain(world.names), world.options.fraction_bits
    for name, shape in ((name, x.shape) for name, x in STATE["head"].items()):
        noisy = np.frombuffer(made[name], np.float32).reshape(shape)
        steps = (noisy - np.frombuffer(plain[name], np.float32).reshape(shape)) * 4 * 2**bits
        np.testing.assert_allclose(steps, np.rint(steps), atol=0.2)
        assert 0.1 < np.abs(steps).max() / (2 * NOISE.sigma) < 6


@pytest.mark.parametrize("at", ["stored", "sent"])
async def test_a_kill_between_storing_and_sending_gives_the_same_bytes(world: SecureWorld, at: str) -> None:
    sent: list[bytes] = []
    if at == "stored":

        def kill_at(sender: str, message: AnyMessage | None) -> str:
            if message is None and sender == "d0" and not sent:
                sent.append(world.devices["d0"]._job.frame)
                return "d0"
            return ""

        world.kill_at = kill_at
    world.start()
    await world.until(lambda: len(world.entries) == 4)
    if at == "sent":
        sent.append(world.entries.pop("d0").path.read_bytes())
        world.kill("d0")
        await world.until(lambda: "d0" in world.entries)
    assert world.entries["d0"].path.read_bytes() == sent[0]
    assert not world.refusals
    assert (await world.close_round())[1] == tuple(world.names)


async def test_counts_of_sensors_are_in_no_vector(world: SecureWorld) -> None:
    wide = world.vector("d0").size
    assert wide == sum(x.size for x in STATE["head"].values())


class TestACount:
    """Of the sums that a device is in, whatever the coordinator counts."""

    RULES = MaskingRules("d0", OPTIONS, noise=NOISE, releases=2)

    def masked(self, state: MaskingState, base: str, attempt: int = 1) -> MaskingState:
        entropy = bytes(range(Secrets.entropy_bytes))
        invited = MaskingInvited(attempt_of(attempt, base=base), entropy)
        state, _ = apply(self.RULES, state, invited)
        state, _ = apply(
            self.RULES, dataclasses.replace(state, phase=MaskingPhase.MASKING), UpdateMasked("x")
        )
        state = record.from_bytes(record.to_bytes(state))
        return apply(self.RULES, state, AttemptEnded())[0]

    def test_ends_the_device_s_part_at_the_limit(self) -> None:
        state = self.masked(IDLE, "a" * 64)
        state = self.masked(state, "a" * 64, 2)  # a further attempt from the same version
        assert list(state.releases.values()) == [1]
        state = self.masked(state, "b" * 64)
        assert list(state.releases.values()) == [2]
        self.masked(state, "b" * 64, 2)
        with pytest.raises(Refused, match="updates are in 2 sums of the task, and one more would exceed"):
            self.masked(state, "c" * 64)
        free = dataclasses.replace(self.RULES, releases=None)
        check_spent(free, state, attempt_of(1, base="c" * 64))

    def test_is_none_without_noise(self) -> None:
        plain = dataclasses.replace(self.RULES, noise=None)
        state, _ = apply(plain, IDLE, MaskingInvited(attempt_of(), bytes(Secrets.entropy_bytes)))
        state, _ = apply(plain, dataclasses.replace(state, phase=MaskingPhase.MASKING), UpdateMasked("x"))
        assert not state.releases


async def test_the_limit_of_the_task_is_of_its_own_sums(world: SecureWorld) -> None:
    limited = PRIVATE.model_copy(update={"privacy": PRIVACY.model_copy(update={"max_epsilon": 30.0})})
    world.start()
    service = world.devices["d0"]
    assert service._rules_of(PRIVATE).releases is None
    most = service._rules_of(limited).releases
    assert NOISE.epsilon(most, 1e-5) <= 30.0 < NOISE.epsilon(most + 1, 1e-5)


def test_a_sum_over_too_few_is_not_opened_where_a_device_sees_it() -> None:
    words = {name: to_words(x[:8], OPTIONS.ring_bits) for name, x in vectors().items()}
    coordinator, devices = fleet_of(words, OPTIONS, noise=NOISE)
    play(coordinator, devices, {})
    one = devices["d0"]
    with pytest.raises(Refused, match="the sum would be over 3 devices; 4 or more must share its noise"):
        check_shared(one.rules, one.state, attempt_of(), 2)
    check_shared(one.rules, one.state, attempt_of(), 3)


def test_releases_without_noise_read_the_record_and_are_read() -> None:
    invited = MaskingInvited(attempt_of(), bytes(range(Secrets.entropy_bytes)))
    state, _ = apply(MaskingRules("d0", OPTIONS), IDLE, invited)
    told = cbor2.loads(record.to_bytes(state))
    assert set(told["secrets"]) == {"cipher", "mask", "seed", "shares"}, "an earlier release knows no more"
    old = {name: value for name, value in told.items() if name not in {"noise", "counted"}}
    read = record.from_bytes(cbor2.dumps(old))
    assert state.secrets is not None
    assert read == dataclasses.replace(state, secrets=dataclasses.replace(state.secrets, noise=b""))


def test_a_record_of_a_release_without_noise_masks_nothing_under_it() -> None:
    old = Secrets.of(bytes(Secrets.entropy_bytes))
    old = dataclasses.replace(old, noise=b"")
    rules = MaskingRules("d0", OPTIONS, noise=NOISE)
    with pytest.raises(Refused, match="of a release without noise of devices"):
        key_of(rules, old, attempt_of())
    assert key_of(dataclasses.replace(rules, noise=None), old, attempt_of()) is None


def test_the_coordinator_takes_no_more_devices_than_the_ring_holds_with_their_noise() -> None:
    narrow = SecureAggregation(identities="none", min_devices=4, ring_bits=16, fraction_bits=10, bound=1)
    noise = SharedNoise.of(PRIVACY.model_copy(update={"clip": 0.25, "noise_multiplier": 4.0}), narrow)
    rules, state = SecureRules(narrow, b"", noise=noise), SecureState(expected=10**6, closes=1e9)
    assert 4 <= rules.capacity < narrow.capacity
    for n in range(rules.capacity):
        state, _ = apply_coordinator(rules, state, KeysCame(f"d{n}"), 0.0)
    with pytest.raises(Refused, match="can wrap around in ring_bits = 16"):
        apply_coordinator(rules, state, KeysCame("one more"), 0.0)


def test_shares_follow_from_the_task_alone() -> None:
    assert shared_noise(PRIVATE) == NOISE
