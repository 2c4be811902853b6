"""The console of a fleet of processes in a browser: pages follow events without a load, and outlive kills."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium.webdriver.common.keys import Keys

from tests.support.console.live_fleet import LiveFleet, live_fleet
from tests.support.console.tabs import CHROMIUM, DRIVER, Tabs, tabs_of
from tests.support.coordinator.fake import FLEET
from tests.support.network.brokers import BrokerProcess, mosquitto  # noqa: F401 - a fixture
from tests.support.sensors.page_device import PageDevice

needs_browser = pytest.mark.skipif(
    not (CHROMIUM and DRIVER), reason="SKIPPED LOUDLY: no chromium, or no chromedriver"
)

LOST = '"[object Event]"'
"""How htmx logs that the stream of events has ended."""


@pytest.fixture
def fleet(tmp_path: Path, mosquitto: BrokerProcess) -> Iterator[LiveFleet]:  # noqa: F811
    """Two devices: one too few for a round."""
    with live_fleet(tmp_path, mosquitto.port) as one:
        one.start_coordinator()
        one.start_device("north-1", "barn")
        one.start_device("north-2", "mill")
        yield one


@pytest.fixture
def tabs(fleet: LiveFleet) -> Iterator[Tabs]:
    with tabs_of(fleet) as one:
        yield one


def sign_in(tabs: Tabs, fleet: LiveFleet) -> None:
    """A person opens a link that works once, and confirms it by Enter."""
    words = ("console", "link", "--name", "olga", "--role", "operator", "--address", fleet.url)
    tabs.browser.get(fleet.lichen(*words).splitlines()[0])
    tabs.browser.switch_to.active_element.send_keys(Keys.ENTER)
    tabs.until(lambda: "olga (operator)" in tabs.text(), "the link signs in")


@pytest.mark.long
@needs_browser
def test_open_pages_follow_devices_rounds_and_what_operators_do(
    fleet: LiveFleet, tabs: Tabs, tmp_path: Path
) -> None:
    fleet.start_console()
    sign_in(tabs, fleet)
    for path in ("/devices", "/rounds", "/", "/rollouts"):
        tabs.open(path)
    tabs.shows("/devices", "north-1", "north-2")
    # A device that trains joins: with it, rounds open and close, and the first version goes to the canary.
    fleet.start_device("north-3", "mill")
    tabs.shows("/devices", "north-3")
    tabs.shows("/rounds", "Round 2", "quorum", "3 of 3")
    tabs.shows("/", "Version 2", "done", "Rollout 1")
    tabs.shows("/rollouts", "Rollout 1")
    # So does a real agent, which only observes; it is killed, and the broker says so.
    (tmp_path / "agent").mkdir()
    agent = PageDevice(tmp_path / "agent", FLEET, fleet.broker)
    try:
        running = agent.start_agent()
        tabs.shows("/devices", "barn\tonline")
        running.kill()
        running.wait()
        tabs.shows("/devices", "barn\toffline")
    finally:
        agent.stop()
    # An operator pauses by the command line; another resumes by the page.
    tabs.close("/rounds")
    tabs.open("/audit")
    fleet.lichen("rollout", "pause", "--format", "json")
    tabs.tagged("/rollouts", "paused")
    tabs.shows("/audit", "rollout.pause")
    tabs.open("/rollouts/1")
    tabs.press_through("Resume")
    tabs.tagged("/rollouts", "paused", still=False)
    tabs.shows("/audit", "rollout.resume", "olga (operator)")
    assert tabs.severe() == []
    assert tabs.hosts() == {fleet.url}, "no page asks another host"


@pytest.mark.long
@needs_browser
def test_open_pages_say_that_coordinator_or_console_was_killed_and_come_back(
    fleet: LiveFleet, tabs: Tabs
) -> None:
    console = fleet.start_console()
    sign_in(tabs, fleet)
    for path in ("/", "/devices", "/rollouts", "/rounds"):
        tabs.open(path)
    tabs.shows("/devices", "north-1", "north-2")
    fleet.coordinator.kill()
    fleet.coordinator.wait()
    for path in tabs.paths():
        tabs.shows(path, "The coordinator does not run")
    fleet.start_coordinator()
    for path in tabs.paths():
        tabs.hides(path, "The coordinator does not run")
    assert tabs.severe() == []
    console.kill()
    console.wait()
    for path in tabs.paths():
        tabs.shows(path, "no answer from the console")
    fleet.start_console()
    for path in tabs.paths():
        tabs.hides(path, "no answer from the console")
        tabs.until(lambda: tabs.connection() == "live", "live again")
        assert "olga (operator)" in tabs.text(), "the session outlives the console"
    others = [one for one in tabs.severe() if "net::ERR_" not in one and LOST not in one]
    assert others == [], "nothing but connections that nobody answered"
    fleet.start_device("north-3", "mill")
    tabs.shows("/devices", "north-3")
    tabs.shows("/rounds", "Round 2", "3 of 3")
    assert tabs.hosts() == {fleet.url}
