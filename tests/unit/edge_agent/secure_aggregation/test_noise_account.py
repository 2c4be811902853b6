"""The account of a device's own noise: over all tasks, whatever they are called, and written first."""

import re
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from edge_agent.secure_aggregation.noise_account import FILE, NoiseAccount, Spent, fewest_devices
from edge_agent.secure_aggregation.service import MaskingService
from lichen_lab.simulation.secure_rounds.fleet import attempt_of
from models.privacy.shared_noise import SharedNoise
from protocol.errors import Misconfigured, Refused, Transient
from protocol.tasks.folding import Privacy, SecureAggregation
from tests.support.secure.world import TASK, SecureWorld

DELTA = 1e-5
OPTIONS = SecureAggregation(identities="none", min_devices=4)
MUCH = SharedNoise.of(Privacy(clip=1.0, noise_multiplier=4.0), OPTIONS)
LITTLE = SharedNoise.of(Privacy(clip=1.0, noise_multiplier=1.0), OPTIONS)
FINE = b'{"rho": 0.5, "sums": 7, "last": {"t": "ab"}, "fewest": {"t": 4}}'
TWO = MUCH.epsilon(2, DELTA)


@pytest.fixture
def account(tmp_path: Path) -> NoiseAccount:
    return NoiseAccount(tmp_path / FILE, TWO * 1.0001, DELTA)


def test_tasks_of_other_names_and_other_noise_add_up(account: NoiseAccount) -> None:
    first = attempt_of(1, base="a" * 64)
    account.charge(first, MUCH, 4)
    account.charge(first, MUCH, 4)  # masked again after a restart
    assert account.words() == {"sums": 1, "epsilon": float(f"{MUCH.epsilon(1, DELTA):.4g}"), "delta": DELTA}
    renamed = replace(attempt_of(1, base="b" * 64), task="other")
    assert "has masked 1 updates, of all its tasks" in account.refusal("other", LITTLE)
    assert account.refusal("other", MUCH) == ""
    account.charge(renamed, MUCH, 4)
    last = {"lab": first.digest.hex(), "other": renamed.digest.hex()}
    assert account.read() == Spent(2 * MUCH.rho(4), 2, last, {"lab": 4, "other": 4})
    assert re.search(r"has masked 2 .* \(privacy.max_epsilon of this device\)", account.refusal("x", MUCH))
    with pytest.raises(Refused, match="has masked 2"):  # another task was charged since it was asked
        account.charge(attempt_of(2, base="c" * 64), LITTLE, 4)
    assert account.read().sums == 2


def test_a_further_attempt_from_the_same_version_is_charged(account: NoiseAccount) -> None:
    """Neighbours can open the sum of one that failed as far as this device knows."""
    account.charge(attempt_of(1, 1), MUCH, 4)
    account.charge(attempt_of(1, 2), MUCH, 4)
    with pytest.raises(Refused, match="has masked 2"):
        account.charge(attempt_of(1, 3), MUCH, 4)


def test_the_noise_of_devices_that_it_cannot_be_sure_of_does_not_count(account: NoiseAccount) -> None:
    many = SharedNoise.of(
        Privacy(clip=1.0, noise_multiplier=4.0), SecureAggregation(identities="none", min_devices=400)
    )
    assert fewest_devices(many, 64, 1000) == 36 + 1
    assert fewest_devices(many, 399, 400) == 400, "all are neighbours: each sees how many are in the sum"
    assert fewest_devices(MUCH, 64, 1000) == 4
    assert account.refusal("lab", many) == "", "it knows no roster yet"
    with pytest.raises(Refused, match="with the noise of 37 devices that it can be sure of"):
        account.charge(attempt_of(), many, 37)
    free = NoiseAccount(account._path, None, DELTA)
    free.charge(attempt_of(), many, 37)
    assert free.read().rho == pytest.approx(many.rho(37))
    assert "the noise of 37 devices" in account.refusal("lab", many)


def test_without_a_limit_any_number_of_sums_is_counted(tmp_path: Path) -> None:
    free = NoiseAccount(tmp_path / FILE, None, DELTA)
    free.charge(attempt_of(base="d" * 64), MUCH, 4)
    free.charge(replace(attempt_of(base="e" * 64), task="b"), LITTLE, 4)
    assert free.read().rho == pytest.approx(MUCH.rho(4) + LITTLE.rho(4))
    for n in range(298):
        free.charge(replace(attempt_of(n, base=f"{n:064x}"), task=f"t{n}"), LITTLE, 4)
    assert free.refusal("t", LITTLE) == ""
    assert free.read().sums == 300
    assert len(free.read().last) == len(free.read().fewest) == 256, "a file of bounded size"


@pytest.mark.parametrize(
    "content",
    [
        *(
            b"",
            b"{",
            b"[]",
            b"[" * 100_000,
            b'{"rho": 1}',
            b'{"rho": 1, "sums": 1, "last": [], "fewest": 1}',
        ),
        *(FINE.replace(b"0.5", wrong) for wrong in (b"-1", b"NaN", b"1e300", b'"x"')),
        *(FINE.replace(b"7", wrong) for wrong in (b"Infinity", b"-7", b"null")),
        *(FINE.replace(b"4", wrong) for wrong in (b"0", b"null")),
    ],
)
def test_a_damaged_account_is_not_zero(account: NoiseAccount, tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE).write_bytes(content)
    with pytest.raises(Misconfigured, match="earlier sums are unknown"):
        account.charge(attempt_of(), MUCH, 4)
    assert "earlier sums are unknown" in account.refusal("lab", MUCH)
    assert (tmp_path / FILE).read_bytes() == content


def test_an_account_that_is_a_link_to_nothing_is_not_zero(account: NoiseAccount, tmp_path: Path) -> None:
    (tmp_path / FILE).symlink_to(tmp_path / "unplugged" / FILE)
    with pytest.raises(Transient):
        account.charge(attempt_of(), MUCH, 4)


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
    assert service.refusal(world.task) == ""
    own = world.devices["d1"].settings.privacy.model_copy(update={"max_epsilon": TWO / 2})
    limited = MaskingService(
        service.settings.model_copy(update={"privacy": own}), service.link, world.clock, service.learning
    )
    renamed = world.task.model_copy(update={"name": "renamed"})
    assert "has masked 1 updates, of all its tasks" in limited.refusal(renamed)
    assert limited.refusal(TASK) == "", "its devices add no noise"


async def test_a_device_beyond_its_limit_ends_its_part_in_words_and_masks_nothing(world: SecureWorld) -> None:
    start = world.start_device

    def limited(name: str) -> None:
        start(name)
        if name == "d1":
            world.devices[name]._account = NoiseAccount(world.folder / name / FILE, 0.5, DELTA)

    world.start_device = limited  # type: ignore[method-assign]
    world.start()
    await world.until(lambda: len(world.entries) == 3 and bool(world.refusals))
    assert any("would bring epsilon to" in words for words in world.refusals)
    assert world.devices["d1"]._state.masked == ""
    assert not (world.folder / "d1" / FILE).exists()


async def test_a_disk_without_room_for_the_account_masks_nothing(
    world: SecureWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = {"d1": True}
    charge = NoiseAccount.charge

    def no_room(self: NoiseAccount, *its: object) -> None:
        if full["d1"] and self._path.parent.name == "d1":
            raise Transient("the disk is full")
        charge(self, *its)  # type: ignore[arg-type]

    monkeypatch.setattr(NoiseAccount, "charge", no_room)
    world.start()
    await world.until(lambda: len(world.entries) == 3)
    assert "d1" not in world.entries
    assert world.devices["d1"]._state.masked == ""
    full["d1"] = False
    await world.until(lambda: len(world.entries) == 4)
    assert (await world.close_round())[1] == tuple(world.names)
