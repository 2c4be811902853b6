"""A task with a package at an agent: refused in words, taken, and never imported by the daemon."""

import sys

import pytest

from protocol.errors import Reason, Refused
from protocol.messages import MAX_WORDS
from protocol.tasks.announcement import TaskAnnouncement
from tests.support.agent.data import toy_task
from tests.support.own_package import NAME, importable, install_example, with_own
from tests.unit.edge_agent.messaging.test_agent_session import BASIC, make

ALLOWED = BASIC + f'[packages]\nallow = ["{NAME}"]\n'


@pytest.fixture
def task(tmp_path):
    with importable(tmp_path / "site") as site:
        yield with_own(toy_task(), install_example(site))
    assert "lichen_example_net" not in sys.modules


async def test_without_the_owners_permission_the_state_says_why_and_the_present_task_stays(tmp_path, task):
    agent = make(tmp_path)
    await agent.work.act_on(TaskAnnouncement.of(toy_task()))
    with pytest.raises(Refused, match="configuration of this machine does not allow") as caught:
        await agent.tasks.accept(TaskAnnouncement.of(task))
    assert caught.value.reason is Reason.UNKNOWN_TASK
    said = agent.reporter.state().refuses
    assert "lichen-example-net 1.2.0" in said
    assert "does not allow" in said
    assert len(said) <= MAX_WORDS
    assert agent.tasks.workspace.task == toy_task()
    agent.close()


async def test_an_allowed_package_is_taken_and_not_imported(tmp_path, task):
    agent = make(tmp_path, text=ALLOWED)
    await agent.work.act_on(TaskAnnouncement.of(task))
    assert agent.tasks.workspace.task == task
    assert agent.reporter.state().refuses is None
    assert "lichen_example_net" not in sys.modules
    agent.close()


async def test_a_package_that_changed_while_the_agent_was_off_is_found_at_its_start(tmp_path, task):
    agent = make(tmp_path, text=ALLOWED)
    await agent.work.act_on(TaskAnnouncement.of(task))
    agent.close()
    with (tmp_path / "site/lichen_example_net.py").open("a") as file:
        file.write("# mine\n")
    agent = make(tmp_path, text=ALLOWED)
    await agent.start()
    assert agent.tasks.workspace is None
    with pytest.raises(Refused, match="another build, or were changed"):
        await agent.tasks.accept(TaskAnnouncement.of(task))
    assert "another build" in agent.reporter.state().refuses
    agent.close()


async def test_a_device_that_only_observes_needs_no_package(tmp_path, task):
    agent = make(tmp_path, roles=["observe"])
    await agent.work.act_on(TaskAnnouncement.of(task))
    assert agent.tasks.workspace.task == task
    agent.close()
