"""A coordinator's private rounds: checked, noised, accounted, the same after a crash, ended in time."""

import asyncio
import math
from functools import partial

import numpy as np
import pytest

from coordinator.aggregation.round_fold import RoundFold
from coordinator.privacy.account_store import accounts
from coordinator.privacy.noise_secret import FILE, NoiseSecret
from coordinator.recovery.state_backup import copy_state
from coordinator.round_machine.closing import closes_at, least, needed
from coordinator.round_machine.events import RoundPhase, RoundState, Rules
from coordinator.storage.database import Database
from coordinator.storage.location import DATABASE
from models.privacy.accountant import releases_within
from protocol.cohort import place, salt_of
from protocol.errors import Misconfigured
from protocol.messages import Offer
from protocol.tasks.folding import Privacy
from protocol.topics import Kind
from tests.support.coordinator.bench import bench
from tests.support.coordinator.fake import frame, header, tiny_task

PRIVACY = Privacy(clip=8.0, noise_multiplier=0.25)
POISSON = {"clip": 8.0, "noise_multiplier": 1.0, "sampling": "poisson"}


def private(privacy: Privacy = PRIVACY, **rounds: object):
    return tiny_task(**rounds).model_copy(update={"privacy": privacy})


def at_least(made, version: int) -> bool:
    return bool(made.app.driver.state.version >= version)


def open_or_made(made, round_: int):
    """The state of a round that is open, or whose version is made."""
    state = made.app.driver.state
    collecting = state.round == round_ and state.phase == "collecting"
    return state if collecting or state.version >= round_ else None


async def deliver(made, *devices: str, value: float = 0.5, round_: int = 1) -> None:
    base = made.app.driver.state.manifest
    for device in devices:
        await made.give(device, Kind.UPDATE, frame(header(device, round_, base), value))


async def test_versions_have_noise_and_an_account_and_a_long_update_is_refused(tmp_path) -> None:
    async with bench(tmp_path, private(count=2), spread_s=0.3) as made:
        await made.online("a", "b")
        await made.phase("collecting")
        await deliver(made, "b", value=1.01)  # 64 values: a norm of 8.08
        [receipt] = made.link.receipts("b")
        assert receipt.status == "refused"
        assert "privacy.clip is 8" in receipt.detail
        await deliver(made, "a", "b", value=1.0)
        await made.until(lambda: made.app.driver.state.version == 1)
        made_N = (await made.app.model.state())["head"]["head/w"]
        assert 0.3 < np.std(made_N) < 3.0  # noise of 2 on the sum of two
        found = accounts(made.app.storage.store, [0, 1])
        assert found[0]["epsilon"] == 0.0
        assert found[1]["releases"] == 1
        assert found[1]["adjacency"] == "replace_one"
        assert math.isfinite(found[1]["epsilon"])
        assert found[1]["words"].startswith("after 1 round: epsilon ")


async def test_a_round_that_is_folded_again_after_a_crash_gives_the_same_bytes(tmp_path, monkeypatch) -> None:
    first: list[np.ndarray] = []
    fold = RoundFold.fold

    async def crash(self, *args):
        result = await fold(self, *args)
        first.append(result.state["head"]["head/w"])
        await asyncio.Event().wait()  # killed before anything of it is recorded

    with monkeypatch.context() as patched:
        patched.setattr(RoundFold, "fold", crash)
        async with bench(tmp_path, private(count=1), spread_s=0.3) as made:
            await made.online("a", "b")
            await made.phase("collecting")
            await deliver(made, "a", "b")
            await made.until(lambda: bool(first))
    async with bench(tmp_path, private(count=1)) as made:
        await made.until(lambda: made.app.driver.state.version == 1)
        np.testing.assert_array_equal((await made.app.model.state())["head"]["head/w"], first[0])
    assert (tmp_path / "coordinator" / FILE).stat().st_mode & 0o777 == 0o600


async def test_rounds_end_in_words_before_epsilon_exceeds_its_limit(tmp_path) -> None:
    limited = Privacy(clip=8.0, noise_multiplier=4.0, max_epsilon=3.4)
    assert releases_within(limited, 9) == 2
    task = private(limited, count=9, patience=0)
    for _ in range(2):  # a restart goes on no further
        async with bench(tmp_path, task) as made:
            for round_ in range(made.app.driver.state.version + 1, 3):
                await made.online("a")
                await made.phase("collecting")
                await deliver(made, "a", round_=round_)
                await made.until(partial(at_least, made, round_))
            await made.phase("done")
            assert made.app.driver.state.version == 2
            assert "privacy.max_epsilon = 3.4" in made.app.driver.state.ended
    others = private(limited.model_copy(update={"noise_multiplier": 1.0}), count=9)
    with pytest.raises(Misconfigured, match="privacy differs"):
        async with bench(tmp_path, others):
            pass
    with pytest.raises(Misconfigured, match="privacy differs"):
        async with bench(tmp_path, tiny_task(count=9)):
            pass
    async with bench(tmp_path, private(limited.model_copy(update={"clip": 4.0}), count=9)) as made:
        assert made.app.driver.state.version == 2


@pytest.mark.long
async def test_a_sample_is_by_chance_alone_and_a_round_of_nobody_makes_a_version(tmp_path) -> None:
    devices = [f"d{n}" for n in range(12)]
    sampled = Privacy.model_validate({**POISSON, "rate": 0.25, "devices": 12})
    async with bench(tmp_path, private(sampled, count=4, deadline_s=600.0), spread_s=0.3) as made:
        await made.online(*devices)
        rounds = []
        for round_ in range(1, 5):
            state = await made.until(partial(open_or_made, made, round_))
            if state.version < round_:
                asked = {device for device in devices if state.asks(device)}
                expected = {device for device in devices if place(state.salt, device) < 2**62}
                assert asked == expected == set(state.selected.unsorted())
                assert state.salt != salt_of(0, round_, state.manifest), "anybody could compute it"
                rounds.append(len(asked))
                await deliver(made, *sorted(asked), round_=round_)
                await made.until(partial(at_least, made, round_))
        assert 0 < sum(rounds) < 48
        found = accounts(made.app.storage.store, [4])[4]
        assert found["releases"] == 4
        assert found["epsilon"] < found["epsilon_of_seen"]


async def test_nobody_in_the_sample_is_no_reason_to_draw_another(tmp_path) -> None:
    rare = Privacy.model_validate({**POISSON, "rate": 1e-9, "devices": 1_000_000})
    async with bench(tmp_path, private(rare, count=1, deadline_s=600.0)) as made:
        await made.online("a")
        await made.until(lambda: made.app.driver.state.version == 1)
        noise_N = (await made.app.model.state())["head"]["head/w"]
        assert np.std(noise_N) > 100  # 8 of noise on nothing, for a thousandth of a device


def test_a_sample_closes_when_all_delivered_or_at_its_deadline() -> None:
    rules = Rules.of(private(Privacy.model_validate({**POISSON, "rate": 0.5, "devices": 2}), deadline_s=60.0))
    assert rules.sampled
    assert (least(rules), needed(rules, 0), needed(rules, 3)) == (0, 0, 3)
    away = RoundState(phase=RoundPhase.COLLECTING, delivered=("a",), until=60.0, away_since=1.0)
    assert closes_at(rules, away) == 60.0, "who is away must not decide how long others are waited for"
    fixed = Rules.of(private())
    assert (fixed.sampled, least(fixed), closes_at(fixed, away)) == (False, 1, 21.0)


def test_a_damaged_secret_is_not_replaced(tmp_path) -> None:
    secret = NoiseSecret(tmp_path)
    first = secret.round_noise(private(), 1, "base")
    assert first is not None
    assert NoiseSecret(tmp_path).round_noise(private(), 1, "base") == first
    keys = {secret.round_noise(private(), *about).key for about in ((1, "base"), (2, "base"), (1, "other"))}
    assert len(keys) == 3
    assert secret.round_noise(tiny_task(), 1, "base") is None
    assert secret.salt(tiny_task(), 1, "base") == salt_of(0, 1, "base")
    assert secret.salt(private(), 1, "base") not in {salt_of(0, 1, "base"), secret.salt(private(), 2, "base")}
    (tmp_path / FILE).write_text("rot")
    with pytest.raises(Misconfigured, match="put it back from a backup"):
        secret.round_noise(private(), 1, "base")


def test_all_machines_of_a_run_share_one_secret(tmp_path) -> None:
    with Database(tmp_path / "c.sqlite3") as store:
        one, two = (NoiseSecret(tmp_path / name, shared=store) for name in "ab")
        assert one.round_noise(private(), 1, "base") == two.round_noise(private(), 1, "base")
    assert not (tmp_path / "a").exists()


async def test_a_database_that_is_rebuilt_has_the_account_and_the_secret_stays(tmp_path) -> None:
    async with bench(tmp_path, private(count=2)) as made:
        await made.online("a")
        await made.phase("collecting")
        await deliver(made, "a")
        await made.until(partial(at_least, made, 1))
        before = accounts(made.app.storage.store, [1])
    folder = tmp_path / "coordinator"
    secret = (folder / FILE).read_text()
    for lost in folder.glob(f"{DATABASE}-*"):
        lost.unlink()
    (folder / f"{DATABASE}.backup").unlink(missing_ok=True)
    (folder / DATABASE).write_bytes(b"rot" * 4000)
    async with bench(tmp_path, private(count=2)) as made:
        assert made.app.driver.state.version == 1
        assert accounts(made.app.storage.store, [1]) == before
    assert (folder / FILE).read_text() == secret
    copy = copy_state(folder, tmp_path / "copy").folder
    assert (copy / FILE).read_text() == secret


async def test_a_clip_that_adapts_is_offered_checked_and_kept_over_a_restart(tmp_path) -> None:
    adaptive = {**PRIVACY.model_dump(), "adaptive_clip": {"count_noise": 0.2, "lr": 1.0}}
    task = private(Privacy.model_validate(adaptive), count=3)

    async def one_round(made, round_: int, value: float, bit: float) -> None:
        await made.online("a", "b")
        await made.until(lambda: made.app.driver.state.phase == "collecting")
        base = made.app.driver.state.manifest
        for device in "ab":
            head = header(device, round_, base, metrics={"within_clip": bit})
            await made.give(device, Kind.UPDATE, frame(head, value))
        await made.until(partial(at_least, made, round_))

    async with bench(tmp_path, task, spread_s=0.3) as made:
        await one_round(made, 1, 0.9, 0.0)  # 64 values: a norm of 7.2
        clip = accounts(made.app.storage.store, [1])[1]["clip"]
        assert clip > 8.0
        await made.until(lambda: made.app.driver.state.phase == "collecting")
        await made.until(lambda: any(offer.round == 2 for offer in made.link.offers()))
        assert {offer.clip for offer in made.link.offers() if offer.round == 2} == {clip}
        assert {offer.clip for offer in made.link.offers() if offer.round == 1} == {8.0}
    async with bench(tmp_path, task) as made:
        await made.online("a", "b")
        await made.until(lambda: made.app.driver.state.phase == "collecting")
        await deliver(made, "a", value=1.01 * clip / 8.0, round_=2)
        assert made.link.receipts("a")[-1].status == "refused"
        assert f"privacy.clip is {clip:g}" in made.link.receipts("a")[-1].detail
        await deliver(made, "a", "b", value=0.99 * clip / 8.0, round_=2)
        await made.until(partial(at_least, made, 2))
        assert accounts(made.app.storage.store, [2])[2]["clip"] > clip
    assert Offer.model_fields["clip"].default is None
