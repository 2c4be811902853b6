"""Protection that the owner of a device asks for, and consent that an operator cannot take back."""

import asyncio
import re
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from edge_agent.cli.main import app
from edge_agent.config.privacy import PrivacySettings
from edge_agent.secure_aggregation import noise_account
from edge_agent.tasks.consent import CONSENT_FILE, ConsentRecord, weakening
from edge_agent.tasks.privacy_floors import Unprotected, require_protected
from protocol.errors import Misconfigured, Refused
from protocol.messages import Offer
from protocol.tasks.announcement import TaskAnnouncement
from protocol.tasks.folding import LocalPrivacy, Privacy, SecureAggregation
from tests.support.agent.data import toy_task
from tests.unit.edge_agent.messaging.test_agent_session import make

USUAL = {"clip": 1.0, "noise_multiplier": 2.0, "max_epsilon": 4.0}
POISSON = {**USUAL, "sampling": "poisson", "rate": 0.1, "devices": 50}


def table(**changes: Any) -> Privacy:
    return Privacy.model_validate({**USUAL, **changes})


def a_task(privacy: Privacy | None):
    return toy_task(privacy=privacy)


@pytest.mark.parametrize(
    ("floors", "privacy", "words"),
    [
        ({"consent": "protected"}, None, "no table [privacy]; this device asks for one (privacy.consent)"),
        ({"min_noise_multiplier": 1.0}, None, "(privacy.min_noise_multiplier)"),
        ({"max_epsilon": 4.0}, None, "(privacy.max_epsilon)"),
        ({"max_clip": 1.0}, None, "(privacy.max_clip)"),
        ({"min_noise_multiplier": 2.5}, table(), "noise_multiplier is 2; this device asks for 2.5"),
        ({"max_epsilon": 3.0}, table(), "max_epsilon is 4; this device allows 3 (privacy.max_epsilon)"),
        ({"max_epsilon": 3.0}, table(max_epsilon=None), "max_epsilon is not set; this device allows 3"),
        ({"max_clip": 0.5}, table(), "clip is 1; this device allows 0.5 (privacy.max_clip)"),
    ],
)
def test_floors_refuse_and_name_the_key(floors: dict, privacy: Privacy | None, words: str) -> None:
    with pytest.raises(Unprotected, match=re.escape(words)):
        require_protected(a_task(privacy), PrivacySettings.model_validate(floors))
    require_protected(a_task(privacy), PrivacySettings())


def test_a_task_that_meets_all_floors_is_taken() -> None:
    floors = {"consent": "protected", "min_noise_multiplier": 2.0, "max_epsilon": 4.0, "max_clip": 1.0}
    require_protected(a_task(table()), PrivacySettings.model_validate(floors))


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (USUAL, None, "[privacy] is gone"),
        (USUAL, {**USUAL, "noise_multiplier": 1.9}, "noise_multiplier was 2.0 and is 1.9"),
        (USUAL, {**USUAL, "clip": 1.1}, "clip was 1.0 and is 1.1"),
        (USUAL, {**USUAL, "delta": 1e-4}, "delta was 1e-05 and is 0.0001"),
        (USUAL, {**USUAL, "max_epsilon": 5.0}, "max_epsilon was 4.0 and is 5.0"),
        (USUAL, {**USUAL, "max_epsilon": None}, "max_epsilon was 4.0 and is gone"),
        (POISSON, USUAL, "sampling was poisson and is none"),
        (POISSON, {**POISSON, "rate": 0.2}, "rate was 0.1 and is 0.2"),
        (None, None, ""),
        (None, USUAL, ""),
        (USUAL, USUAL, ""),
        (USUAL, POISSON, ""),
        (USUAL, {**USUAL, "noise_multiplier": 3.0, "clip": 0.5, "max_epsilon": 2.0}, ""),
        ({**USUAL, "max_epsilon": None}, USUAL, ""),
    ],
)
def test_what_is_weaker(before: dict | None, after: dict | None, words: str) -> None:
    one, other = (None if each is None else Privacy.model_validate(each) for each in (before, after))
    assert words in weakening(one, other)
    assert bool(words) == bool(weakening(one, other))


def folder(root, name: str):
    (root / name).mkdir()
    return root / name


async def give(agent, privacy: Privacy | None) -> str:
    """Announce; the words of a refusal."""
    try:
        await agent.work.act_on(TaskAnnouncement.of(a_task(privacy)))
    except Refused as refused:
        return refused.words
    return ""


async def test_a_weaker_table_gets_nothing_until_it_is_strong_again(tmp_path) -> None:
    agent = make(tmp_path)
    assert not await give(agent, table())
    words = await give(agent, table(noise_multiplier=0.5))
    assert "noise_multiplier was 2.0 and is 0.5" in words
    assert "noise_multiplier was 2.0" in (agent.reporter.state().refuses or "")
    assert agent.learner._why_no_part(agent.tasks.workspace, None) == agent.tasks.withheld
    assert agent.learner.outbox._rests
    assert agent.tasks.workspace.task == a_task(table())
    # a restart does not forget it
    agent.close()
    again = make(tmp_path)
    await again.tasks.start(a_task(table()))
    assert "noise_multiplier was 2.0" in again.tasks.withheld
    # the former protection again
    assert not await give(again, table())
    assert not again.tasks.withheld
    assert not again.learner.outbox._rests
    assert again.reporter.state().refuses is None


async def test_stronger_is_taken_and_weaker_than_that_is_not(tmp_path) -> None:
    agent = make(tmp_path)
    assert not await give(agent, None)
    assert not await give(agent, table())
    assert not await give(agent, table(noise_multiplier=3.0))
    assert "was 3.0 and is 2.0" in await give(agent, table())
    assert "is gone" in await give(agent, None)


async def test_a_person_consents_and_the_next_announcement_is_taken(tmp_path) -> None:
    agent = make(tmp_path)
    assert not await give(agent, table())
    assert "is gone" in await give(agent, None)
    agent.close()
    config = next(tmp_path.rglob("agent.toml"))
    said = await asyncio.to_thread(CliRunner().invoke, app, ["consent", "--config", str(config)])
    assert said.exit_code == 0, said.output
    assert "its table [privacy] is gone" in said.stdout
    assert "Restart the agent." in said.stdout
    again = make(tmp_path)
    assert not await give(again, None)
    assert again.tasks.workspace.task == a_task(None)


async def test_floors_hold_after_consent_and_a_device_that_sends_nothing_needs_none(tmp_path) -> None:
    strict = make(folder(tmp_path, "one"), **{"privacy.consent": "protected"})
    assert "(privacy.consent)" in await give(strict, None)
    assert strict.tasks.workspace is None
    observes = make(folder(tmp_path, "two"), **{"privacy.consent": "protected", "roles": ["observe"]})
    assert not await give(observes, None)


def test_a_damaged_record_is_no_consent(tmp_path) -> None:
    (tmp_path / CONSENT_FILE).write_text("rot")
    record = ConsentRecord(tmp_path / CONSENT_FILE)
    with pytest.raises(Misconfigured, match="consent anew"):
        record.require(a_task(table()))
    assert "damaged" in record.begin(a_task(table()))
    assert record.forget_all() == {}
    record.require(a_task(None))


async def test_a_round_with_a_larger_clip_is_sat_out(tmp_path) -> None:
    agent = make(tmp_path, **{"privacy.max_clip": 1.0})
    assert not await give(agent, table(adaptive_clip={"count_noise": 2.0}))
    offer = Offer(task="toy", round=2, base="0" * 64, base_size=1, closes_in_s=9.0, clip=1.5)
    words = agent.learner._why_no_part(agent.tasks.workspace, offer)
    assert words == "the offer's clip is 1.5; this device allows 1 (privacy.max_clip)"
    assert "clip" not in agent.learner._why_no_part(
        agent.tasks.workspace, offer.model_copy(update={"clip": 1.0})
    )


def test_a_task_whose_devices_no_longer_add_the_noise_is_weaker(tmp_path) -> None:
    def shared(**secure: Any):
        table_of = SecureAggregation.model_validate({"min_devices": 5, **secure})
        return toy_task(privacy=table(), secure_aggregation=table_of)

    record = ConsentRecord(tmp_path / CONSENT_FILE)
    record.taken(a_task(table()))
    record.require(shared())  # the coordinator added it before: this is more
    record.taken(shared())
    record.require(shared(min_devices=4))
    with pytest.raises(Unprotected, match="devices add the noise no longer"):
        record.require(a_task(table()))
    with pytest.raises(Unprotected, match="min_devices was 5 and is 6, so each device adds less noise"):
        record.require(shared(min_devices=6))


async def test_the_devices_own_noise_is_a_part_of_what_was_consented_to(tmp_path) -> None:
    local = LocalPrivacy(clip=1.0, noise_multiplier=2.0, max_epsilon=4.0)
    agent = make(tmp_path)

    async def announced(one: LocalPrivacy | None) -> str:
        try:
            await agent.work.act_on(TaskAnnouncement.of(toy_task(method="fedavg", local_privacy=one)))
        except Refused as refused:
            return refused.words
        return ""

    assert not await announced(local)
    assert "its table [local_privacy] is gone" in await announced(None)
    weaker = local.model_copy(update={"noise_multiplier": 1.5})
    assert "local_privacy.noise_multiplier was 2.0 and is 1.5" in await announced(weaker)
    assert "max_epsilon was 4.0 and is gone" in await announced(
        local.model_copy(update={"max_epsilon": None})
    )
    assert not await announced(local.model_copy(update={"clip": 0.5}))
    agent.close()


def test_a_record_from_before_a_table_says_nothing_of_it(tmp_path) -> None:
    (tmp_path / CONSENT_FILE).write_text('{"toy": {"privacy": null}}')
    ConsentRecord(tmp_path / CONSENT_FILE).require(a_task(None))


async def test_a_device_whose_account_of_its_own_noise_is_closed_says_so_before_it_trains(tmp_path) -> None:
    agent = make(tmp_path)
    task = toy_task(privacy=table(), secure_aggregation=SecureAggregation(identities="none"))
    await agent.tasks.start(task)
    agent.tasks.workspace.readiness = lambda: SimpleNamespace(samples=10_000)
    offer = Offer(task=task.name, round=1, attempt=1, base="ab" * 32, base_size=9, closes_in_s=60)
    assert await agent.learner._is_wanted(offer)
    account = agent.learner.settings.device_dir / noise_account.FILE
    account.write_text("damaged")
    assert not await agent.learner._is_wanted(offer)
    assert "earlier sums are unknown" in agent.tasks.spent
    account.unlink()
    assert await agent.learner._is_wanted(offer)
    assert agent.tasks.spent == ""
