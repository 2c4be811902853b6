"""Labels through the site's broker, as Home Assistant gives them: an agent's parts over a real Mosquitto."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import jinja2
import pytest

from edge_agent.config.agent import AgentSettings, InferSettings
from edge_agent.inference.service import Inference
from edge_agent.labels.service import LabelService
from edge_agent.labels.site_labels import MAX_PAYLOAD, SiteLabels
from edge_agent.publish.home_assistant import node_of
from edge_agent.publish.service import Publishing, predictions_link
from edge_agent.windows.collector import Collector
from edge_agent.windows.window_sets import to_window_set
from runtime.clock import SystemClock
from runtime.concurrency.signals import Signal
from runtime.mqtt.link import Link
from runtime.process.daemon import Progress
from tests.support.agent.serving import TASK, judged
from tests.support.network.brokers import BrokerProcess, mosquitto
from tests.support.network.links import quick, running
from tests.support.sensors.home_assistant_process import python, started
from tests.support.services import beside, until

__all__ = ["mosquitto", "python"]
pytestmark = pytest.mark.mosquitto
STATE, SET, PRESS = "lichen/d/label", "lichen/d/label/set", "lichen/d/label/press"
NODE = node_of("f", "d")
SELECT = f"homeassistant/select/{NODE}/label/config"
BUTTONS = {f"homeassistant/button/{NODE}/label_{press}/config" for press in ("undo", "skip", "newest")}


class Site:
    """Someone else at the site's broker, as Home Assistant is."""

    def __init__(self, link: Link, collector: Collector) -> None:
        self.link, self.collector = link, collector
        self.heard: dict[str, bytes] = {}
        self.at_state: list[list[int]] = []
        """Classes in the store, at each state that came."""

    async def listen(self) -> None:
        async for message in self.link.messages():
            self.heard[message.topic] = message.payload
            if message.topic == STATE:
                self.at_state.append(self.stored())
            message.ack()

    def stored(self) -> list[int]:
        assert self.collector.workspace is not None
        return [int(y) for y in self.collector.workspace.store.recent(99).y_B]

    def add(self, count: int, seed: int) -> None:
        scored = judged(count, seed)
        windows = to_window_set(scored.windows, scored.quality)
        windows.y_B[:] = -1
        assert self.collector.workspace is not None
        self.collector.workspace.store.add(windows, scored.windows.start_B)

    @property
    def state(self) -> dict[str, Any]:
        return json.loads(self.heard.get(STATE, b"{}"))

    @property
    def config(self) -> dict[str, Any]:
        return json.loads(self.heard[SELECT])

    async def choose(self, label: str) -> None:
        """What Home Assistant publishes if a person chooses an option."""
        this = {"attributes": json.loads(rendered(self.config["json_attributes_template"], self.state))}
        payload = rendered(self.config["command_template"], None, value=label, this=this)
        await self.link.publish(self.config["command_topic"], payload.encode())

    async def press(self, name: str) -> None:
        await self.link.publish(PRESS, name.encode())


def rendered(template: str, state: dict[str, Any] | None, **more: Any) -> str:
    environment = jinja2.Environment(autoescape=False)  # noqa: S701 - no HTML
    environment.filters["tojson"] = json.dumps
    return environment.from_string(template).render(value_json=state, **more)


@asynccontextmanager
async def device(broker: BrokerProcess, folder: Path, **mqtt: Any) -> AsyncIterator[Site]:
    settings = AgentSettings.model_validate(
        {
            "fleet": "f",
            "device": "d",
            "state_dir": folder,
            "cache_dir": folder,
            "infer": {"mqtt": {"port": broker.port, "home_assistant": True, "labels": True} | mqtt},
        }
    )
    publish = settings.infer.mqtt
    assert publish is not None
    clock = SystemClock()
    collector = Collector(
        settings, [], clock=clock, listener=lambda _: None, changed=Signal(), progress=Progress()
    )
    await collector.use(TASK)
    inference = Inference(InferSettings(), clock)
    labels = LabelService(collector, inference, clock, Signal(), settings.infer.min_quality)
    controls = SiteLabels(labels, settings, publish, clock) if publish.labels else None
    link = predictions_link(settings, Link)
    assert link is not None
    made = Publishing(settings, publish, link, clock, controls=controls)
    async with (
        running(Link(quick(broker.port), "site", filters=[("homeassistant/#", 1), ("lichen/#", 1)])) as other,
        beside(*made.services().values(), inference.run, forever=True),
    ):
        site = Site(other, collector)
        async with beside(site.listen(), forever=True):
            yield site
    await collector.leave()


async def test_the_proposed_window_is_labelled_undone_and_skipped(
    mosquitto: BrokerProcess, tmp_path: Path
) -> None:
    async with device(mosquitto, tmp_path) as site:
        await until(lambda: SELECT in site.heard and site.heard.keys() >= BUTTONS and STATE in site.heard)
        assert (site.state["window"], site.state["reason"]) == (None, "no window is to be labelled")
        site.add(6, seed=1)
        await site.press("newest")
        await until(lambda: site.state["window"])
        assert site.state["reason"] == "the newest window"
        await site.press("skip")
        await until(lambda: site.state["reason"] != "the newest window")
        first = site.state["window"]
        assert site.config["options"] == ["slow", "middle", "fast"]
        assert rendered(site.config["value_template"], site.state) == "None", "Home Assistant shows unknown"

        await site.choose("fast")
        await until(lambda: (site.state["last"] or {}).get("window") == first)
        assert site.state["last"]["label"] == "fast"
        assert site.stored().count(2) == 1
        assert site.at_state[-1].count(2) == 1, "the label was stored when the state came"
        assert site.state["window"] not in {first, None}
        second = site.state["window"]
        await site.press("skip")
        await until(lambda: site.state["window"] not in {first, second})
        await site.press("undo")
        await until(lambda: 2 not in site.stored())
        await until(lambda: site.state["last"] is None)
        assert site.state["error"] is None


async def test_messages_that_are_wrong_are_refused_in_words_and_nothing_is_labelled(
    mosquitto: BrokerProcess, tmp_path: Path
) -> None:
    async with device(mosquitto, tmp_path) as site:
        await until(lambda: SELECT in site.heard)
        site.add(3, seed=1)
        await site.press("newest")
        await until(lambda: site.state["window"])
        window = site.state["window"]

        async def refused(topic: str, payload: bytes, words: str) -> None:
            await site.link.publish(topic, payload)
            await until(lambda: words in (site.state["error"] or ""))

        await refused(SET, b"fast", "a label is a JSON object")
        await refused(SET, b"\xff\xfe" * 9, "a label is a JSON object")
        await refused(SET, json.dumps({"label": "fast"}).encode(), "the label is wrong: window")
        await refused(SET, json.dumps({"label": ["fast"], "window": window}).encode(), "the label is wrong")
        await refused(SET, json.dumps({"label": "odd", "window": window}).encode(), "is no class of task")
        await refused(SET, json.dumps({"label": "fast", "window": "9-00"}).encode(), "is no name of a window")
        await refused(SET, b"[" * (MAX_PAYLOAD + 1), "at most 1024")
        await refused(SET, b"[" * MAX_PAYLOAD, "a label is a JSON object")  # deeper than Python reads
        await refused(PRESS, b"format \x1b[2J disk", "is no button; they are undo, skip, newest")
        right = json.dumps({"label": "fast", "window": window}).encode()
        await site.link.publish(SET, right, retain=True)
        await asyncio.sleep(0.3)  # this one is a fresh message, and does what it says, if the rate permits it
        for _ in range(30):
            await site.press("newest")
        await until(lambda: "too many messages" in (site.state["error"] or ""))
        assert site.stored().count(2) <= 1


async def test_a_retained_command_does_nothing_at_a_start(mosquitto: BrokerProcess, tmp_path: Path) -> None:
    async with running(Link(quick(mosquitto.port), "before", filters=[])) as link:
        await link.publish(PRESS, b"undo", retain=True)
    async with device(mosquitto, tmp_path) as site:
        await until(lambda: "retained" in (site.state.get("error") or ""))


async def test_switched_off_nothing_is_accepted_and_old_entities_are_removed(
    mosquitto: BrokerProcess, tmp_path: Path
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    async with device(mosquitto, tmp_path / "a") as site:
        await until(lambda: SELECT in site.heard and site.heard.keys() >= BUTTONS)
    async with device(mosquitto, tmp_path / "b", labels=False) as site:
        site.add(3, seed=1)
        await until(lambda: all(site.heard.get(topic) == b"" for topic in (SELECT, *BUTTONS)))
        await site.press("newest")
        await asyncio.sleep(0.3)
        assert site.state.get("window") is None


async def test_home_assistant_itself_labels_a_window(
    python: str, mosquitto: BrokerProcess, tmp_path: Path
) -> None:
    async with device(mosquitto, tmp_path) as site:
        home = await started(python, mosquitto.port)
        label, newest = "select.d_label_of_a_window", "button.d_newest_window"
        await home.until(lambda found: {label, newest} <= found.keys())
        await home.until(lambda found: found[newest]["state"] != "unavailable")
        assert home.entities[label]["options"] == ["slow", "middle", "fast"]
        site.add(6, seed=1)
        await home.call("button", "press", entity_id=newest)
        await home.until(lambda found: found[label].get("reason") == "the newest window")
        window = home.entities[label]["window"]
        await home.call("select", "select_option", entity_id=label, option="fast")
        await home.until(lambda found: (found[label].get("last") or {}).get("window") == window)
        assert site.stored() == [2]
        await home.call("button", "press", entity_id="button.d_undo_last_label")
        await home.until(lambda found: not found[label].get("last"))
        assert site.stored() == []
        await home.end()
