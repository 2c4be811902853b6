"""The pictures of the documents: ``-m tests.support.console.pictures FOLDER``.

Pages of a real console over tables that the coordinator's own writers wrote; numbers and names are made up.
"""

import base64
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from playwright.sync_api import Browser, Page, expect

from coordinator.config.coordinator import CoordinatorSettings
from coordinator.rollout.device_record import DeviceReport
from coordinator.rollout.model import Begun, Create, RolloutTick
from coordinator.rollout.stage_devices import Fact
from coordinator.rollout.store import RolloutStore
from coordinator.round_machine.events import RoundPhase
from coordinator.storage import schema
from coordinator.telemetry.history import added, flat
from protocol.messages import ModalityState, State
from tests.support.console.browser import PHONE, SCREEN, chromium, hidden_width, page_of, violations
from tests.support.console.consoles import running
from tests.support.console.fleet_tables import state_of, store_states
from tests.support.console.history import History, settings_in
from tests.support.console.lived_in import telemetry_of
from tests.support.console.several_tasks import learns, tasks_of
from tests.support.coordinator.rollouts import plan, release, report
from tests.support.tasks import sensors, small_task

PAGES: Final = {
    "overview": "/",
    "fleet": "/devices",
    "device": "/devices/barn-2",
    "versions": "/versions",
    "rollout": "/rollouts/1",
}
PAGES_OF_TASKS: Final = {"tasks": "/tasks"}
"""Of the same fleet with two further tasks."""
LOOKS: Final = {"light": SCREEN, "dark": PHONE}
_DEVICES: Final = tuple(f"{site}-{number}" for number in range(1, 4) for site in ("barn", "field", "mill"))
_VERSIONS: Final = 12
_STABLE: Final = 9


def prepared(folder: Path) -> CoordinatorSettings:
    """Nine devices, twelve versions, an open round and an open rollout."""
    settings = settings_in(folder, fleet="farm", rollout={"mode": "manual"})
    now = time.time()
    task = small_task(
        sensors(acc=(3, 50), gyro=(3, 50)),
        ("rest", "walk", "graze"),
        name="gait",
        rounds={"count": 20, "deadline_s": 600.0},
    )
    with History(settings, task) as history:
        history.clock.set_wall(now - 12.0 * _VERSIONS - 600)
        history.makes(0)
        for number in range(1, _VERSIONS + 1):
            history.plays(number, _DEVICES[: 6 + number % 3])
        why = dict.fromkeys(_DEVICES, "able; least served")
        history.opens(_VERSIONS + 1, _DEVICES, why=why)
        history.delivers(_VERSIONS + 1, _DEVICES[:5])
        history.stands(
            RoundPhase.COLLECTING,
            _VERSIONS + 1,
            _VERSIONS,
            selected=_DEVICES,
            delivered=_DEVICES[:5],
            since=now - 240,
            until=now + 360,
        )
        for version in (_STABLE, _VERSIONS):
            given = {"digest": release(version).digests[0], "size": 48_000, "metrics": {}}
            history.store.put(schema.exports, version=version, wall=now - 600, **given)
        store_states(history.store, [_state(number, name) for number, name in enumerate(_DEVICES, 1)])
        _telemetry(history, now)
    _rollout(settings, now - 300)
    return settings


def prepared_tasks(folder: Path, settings: CoordinatorSettings) -> CoordinatorSettings:
    """The same main task, a further one that waits for devices, and one that is new."""
    tasks = tasks_of(folder, "sound", "gate")
    made = CoordinatorSettings.model_validate(settings.model_dump() | {"tasks": tasks})
    learns(made.for_task("sound"), 4, _DEVICES[:4], name="barn-sounds")
    return made


def _state(number: int, name: str) -> State:
    """At the site ``barn`` devices run the newest version."""
    site = name[:-2]
    return state_of(
        number,
        name,
        status="offline" if name == "mill-3" else "online",
        roles=("observe", "train"),
        labels={"site": site},
        modalities={
            "acc": ModalityState(windows=(30 + number, 22, 14), quality=0.99 - number / 100),
            "gyro": ModalityState(windows=(30 + number, 22, 14), quality=0.95 - number / 50),
        },
        windows=66 + number,
        model=release(_VERSIONS if site == "barn" else _STABLE).digests[0],
        trial=None,
    )


def _telemetry(history: History, now: float) -> None:
    past: dict[str, object] = {}
    for minute in range(90):
        values = flat(telemetry_of(2, minute), frozenset({"acc", "gyro"}))
        past = added(past, now - 60.0 * (90 - minute), values)
    history.store.put(schema.telemetry_history, device="barn-2", history=past)


def _rollout(settings: CoordinatorSettings, now: float) -> None:
    """Its canaries have committed; two devices of the wave try it."""
    one = release(_VERSIONS)
    facts = {name: Fact(online=name != "mill-3", labels={"site": name[:-2]}) for name in _DEVICES}
    with RolloutStore(settings.location) as book:
        book.play(Begun(mode="manual", release=release(_STABLE)), now)
        stages = {"canary": "label:site=barn", "waves": (0.6, 1.0), "soak_s": 0.0, "deadline_s": 86400.0}
        book.play(Create(release=one, plan=plan(**stages)), now)
        book.play(RolloutTick(fleet=facts), now + 1)
        said: dict[str, DeviceReport] = {}
        for moment in (60.0, 61.0, 62.0, 63.0):
            _, course, _ = book.play(RolloutTick(heard=said, fleet=facts), now + moment)
            assert course.rollout is not None
            for number, (name, member) in enumerate(course.rollout.members.items()):
                done = member.stage == 0
                told = report(
                    one,
                    member.serial,
                    "committed" if done else "trial",
                    windows=20.0 if done else 6.0 + number,
                    agreement=0.97 - number / 100,
                    latency_ratio=1.02 + number / 100,
                )
                said[name] = DeviceReport(online=True, model=told.bundle if done else None, trial=told)


def look(page: Page, url: str, path: str) -> None:
    """Open a page, whole, live and drawn."""
    page.goto(url + path)
    expect(page.locator("[data-connection=live]")).to_be_visible()
    for one in page.locator("figure[data-plot]").all():
        expect(one.locator("canvas")).to_have_count(1)


def _picture(page: Page) -> bytes:
    """By Chromium's own means: playwright's would add styles, which the policy of the pages forbids."""
    answer = page.context.new_cdp_session(page).send("Page.captureScreenshot", {"format": "png"})
    return base64.b64decode(answer["data"])


def write(
    folder: Path, url: str, browser: Browser, pages: Mapping[str, str]
) -> list[tuple[str, int, object]]:
    """Write pictures of pages; what is cut off or not accessible: page, CSS pixels, findings."""
    folder.mkdir(parents=True, exist_ok=True)
    wrong: list[tuple[str, int, object]] = []
    for scheme, width in LOOKS.items():
        with page_of(browser, width, scheme) as page:
            for name, path in pages.items():
                look(page, url, path)
                (folder / f"console-{name}-{scheme}.png").write_bytes(_picture(page))
                cut, found = hidden_width(page), violations(page)
                if cut > 0 or found:
                    wrong.append((f"{path} {scheme} {width}", cut, found))
    return wrong


def make(folder: Path) -> list[tuple[str, int, object]]:
    """Prepare the tables, serve them, and write the pictures."""
    with tempfile.TemporaryDirectory() as state:
        settings = prepared(Path(state))
        # As long as its lock is held, a coordinator runs.
        with settings.location.database(), chromium() as browser:
            with running(settings) as served:
                wrong = write(folder, served.url, browser, PAGES)
            several = prepared_tasks(Path(state), settings)
            with several.for_task("sound").location.database(), running(several) as served:
                return wrong + write(folder, served.url, browser, PAGES_OF_TASKS)


if __name__ == "__main__":
    sys.exit("\n".join(map(str, make(Path(sys.argv[1])))) or 0)
