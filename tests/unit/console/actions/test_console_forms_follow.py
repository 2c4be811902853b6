"""Forms on pages follow what the page shows, within the part that is updated live."""

import re
import time
from collections.abc import Callable

import pytest

from coordinator.identity.setup import init
from coordinator.identity.store import IdentityStore
from coordinator.rollout.model import Begun, Create
from coordinator.rollout.store import RolloutStore
from tests.support.console.consoles import Client, running, signed_in, with_tables
from tests.support.coordinator.rollouts import plan, release


def live_part(page: str) -> str:
    """What a browser replaces when something changes."""
    return page[page.index('id="live"') :]


def until(what: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not what():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.both_engines
def test_console_a_device_offers_what_fits_its_standing(tmp_path) -> None:
    settings = with_tables(tmp_path)
    init(settings, ["localhost"])
    with IdentityStore(settings.location) as book:
        book.claim(book.invite(None, 60.0), "pi", "a" * 64)
    with running(settings) as console:
        admin = signed_in(console, settings, "admin")

        def offered() -> set[str]:
            page = admin.get("/devices/pi").body
            forms = re.findall(r'action="/act(/[^"]+)"', page)
            assert set(forms) == set(re.findall(r'action="/act(/[^"]+)"', live_part(page)))
            return {one.rpartition("/")[2] for one in forms} - {"sign-out"}

        until(lambda: "approve" in offered())
        asks = {"ask-state", "ask-logs", "forget"}
        assert offered() == {*asks, "approve", "revoke"}, "no Release: it is in no quarantine"
        page = admin.get("/devices/pi").body
        assert re.search(r'name="status" value="pending"', page)
        assert admin.post("/api/v1/devices/pi/approve", {"status": "pending"}).status == 200
        until(lambda: offered() == {*asks, "revoke"})
        shown = re.search(r'"x-lichen-shown": "(\w+)"', admin.get("/devices/pi").body)
        assert shown is not None
        assert admin.post("/api/v1/devices/pi/revoke", {"status": "active"}).status == 200
        until(lambda: offered() == {*asks, "invites"})
        again = admin.get("/devices/pi", hx_request="true", x_lichen_shown=shown[1])
        assert again.status == 200, "an open page is told"
        assert "/devices/pi/revoke" not in live_part(again.body)


@pytest.mark.both_engines
def test_console_the_form_of_a_new_rollout_carries_the_last_one_that_its_person_saw(tmp_path) -> None:
    settings = with_tables(tmp_path, rollout={"mode": "manual"})
    with RolloutStore(settings.location) as book:
        book.play(Begun(mode="manual", release=release(1)), time.time())
    with running(settings) as console:
        ann = signed_in(console, settings, "operator", "ann")

        def seen(one: Client) -> str:
            return one.get("/rollouts").field("last")

        assert seen(ann) == "0"
        with RolloutStore(settings.location) as book:
            book.play(Create(release=release(2), plan=plan()), time.time())  # somebody else begins one
        until(lambda: seen(ann) == "1")
