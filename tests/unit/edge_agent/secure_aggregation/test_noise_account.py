"""The account of a device's own noise: over all tasks, whatever they are called, and written first."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from edge_agent.secure_aggregation.noise_account import FILE, NoiseAccount, Spent
from lichen_lab.simulation.secure_rounds.fleet import attempt_of
from models.privacy.shared_noise import SharedNoise
from protocol.errors import Misconfigured, Refused, Transient
from protocol.tasks.folding import Privacy, SecureAggregation
from tests.support.secure.world import TASK, SecureWorld

DELTA = 1e-5
OPTIONS = SecureAggregation(identities="none", min_devices=4)
MUCH = SharedNoise.of(Privacy(clip=1.0, noise_multiplier=4.0), OPTIONS)
LITTLE = SharedNoise.of(Privacy(clip=1.0, noise_multiplier=1.0), OPTIONS)
TWO = MUCH.epsilon(2, DELTA)


@pytest.fixture
def account(tmp_path: Path) -> NoiseAccount:
    return NoiseAccount(tmp_path / FILE, TWO * 1.0001, DELTA)


def test_tasks_of_other_names_and_other_noise_add_up(account: NoiseAccount) -> None:
    first = attempt_of(1, base="a" * 64)
    account.charge(first, MUCH)
    account.charge(replace(first, attempt=2), MUCH)  # a further attempt from the same version
    assert account.words() == {"sums": 1, "epsilon": float(f"{MUCH.epsilon(1, DELTA):.4g}"), "delta": DELTA}
    renamed = replace(attempt_of(1, base="b" * 64), task="other")
    with pytest.raises(Refused, match=r"in 1 sums, of all its tasks, .* .privacy.max_epsilon of this device"):
        account.require(renamed, LITTLE)
    account.require(renamed, MUCH)
    account.charge(renamed, MUCH)
    assert account.read() == Spent(2 * MUCH.rho(4), 2, {"lab": "a" * 64, "other": "b" * 64})
    account.require(first, MUCH)  # it counts already
    with pytest.raises(Refused, match="in 2 sums, of all its tasks"):
        account.require(replace(renamed, task="a third name"), MUCH)
    with pytest.raises(Refused, match="in 2 sums"):  # another task was charged since it was asked
        account.charge(attempt_of(2, base="c" * 64), LITTLE)
    assert account.read().sums == 2


def test_without_a_limit_any_number_of_sums_is_counted(tmp_path: Path) -> None:
    free = NoiseAccount(tmp_path / FILE, None, DELTA)
    free.charge(attempt_of(base="d" * 64), MUCH)
    free.charge(replace(attempt_of(base="e" * 64), task="b"), LITTLE)
    assert free.read().rho == pytest.approx(MUCH.rho(4) + LITTLE.rho(4))
    for n in range(598):
        free.charge(replace(attempt_of(n, base=f"{n:064x}"), task=f"t{n % 300}"), LITTLE)
    free.require(attempt_of(), LITTLE)
    assert free.read().sums == 600
    assert len(free.read().bases) == 256, "a file of bounded size"


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b'{"rho": 1}', b'{"rho": -1, "sums": 1, "bases": {}}', b'{"rho": NaN, "sums": 1}'],
)
def test_a_damaged_account_is_not_zero(account: NoiseAccount, tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE).write_bytes(content)
    for use in (account.require, account.charge):
        with pytest.raises(Misconfigured, match="earlier sums are unknown"):
            use(attempt_of(), MUCH)
    assert (tmp_path / FILE).read_bytes() == content


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[SecureWorld]:
    private = Privacy(clip=1.0, noise_multiplier=4.0)
    made = SecureWorld(
        tmp_path, task=TASK.model_copy(update={"privacy": private, "secure_aggregation": OPTIONS})
    )
    yield made
    await made.close()


async def test_a_device_charges_before_it_masks_and_takes_part_no_more_at_its_limit(
    world: SecureWorld,
) -> None:
    world.start()
    await world.until(lambda: len(world.entries) == 4)
    service = world.devices["d0"]
    assert service.status()["secure_round"]["noise_account"]["sums"] == 1
    assert NoiseAccount(world.folder / "d0" / FILE, None, DELTA).read().rho == MUCH.rho(4)
    own = service.settings.privacy.model_copy(update={"max_epsilon": TWO / 2})
    service.settings = service.settings.model_copy(update={"privacy": own})
    service.__post_init__()
    service._loaded.set()
    world.rounds = world.rounds.model_copy(update={"round": 2, "manifest": "ef" * 32})
    renamed = world.task.model_copy(update={"name": "renamed"})
    offer = world.offer().model_copy(update={"task": "renamed"})
    with pytest.raises(Refused, match="in 1 sums, of all its tasks"):
        await service.take_part(offer, renamed, world.vector("d0"), None)


async def test_a_disk_without_room_for_the_account_masks_nothing(
    world: SecureWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = {"d1": True}
    charge = NoiseAccount.charge

    def no_room(self: NoiseAccount, attempt: object, noise: object) -> None:
        if full["d1"] and self._path.parent.name == "d1":
            raise Transient("the disk is full")
        charge(self, attempt, noise)

    monkeypatch.setattr(NoiseAccount, "charge", no_room)
    world.start()
    await world.until(lambda: len(world.entries) == 3)
    assert "d1" not in world.entries
    assert world.devices["d1"]._state.masked == ""
    full["d1"] = False
    await world.until(lambda: len(world.entries) == 4)
    assert (await world.close_round())[1] == tuple(world.names)
