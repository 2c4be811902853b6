"""The page of a device as processes: started by its socket, used by keyboard, gone when nobody looks."""

import json
import shutil
import signal
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from tests.support.sensors.page_device import PageDevice, page_device

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")


@pytest.fixture
def device(tmp_path: Path) -> Iterator[PageDevice]:
    with page_device(tmp_path) as one:
        yield one


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as one:
        yield one


def status_of(url: str) -> int:
    opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
    try:
        with opener.open(url, timeout=30) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return int(error.code)


def labels(device: PageDevice) -> dict[str, str | None]:
    """By name, of the newest windows."""
    said = device.run("label", "list", "--newest", "--count", "20", "--format", "json")
    assert said.returncode == 0, said.stderr
    return {one["window"]: one["label"] for one in json.loads(said.stdout)["windows"]}


@pytest.mark.long
def test_the_command_line_labels_and_undoes_and_a_killed_agent_keeps_the_label(device: PageDevice) -> None:
    agent = device.start_agent()
    asked = json.loads(device.run("label", "list", "--format", "json").stdout)["windows"]
    name = asked[0]["window"]
    assert asked[0]["label"] is None
    assert asked[0]["reason"].startswith("no model predicts yet, and ")
    done = device.run("label", "set", name, "fast")
    assert (done.returncode, done.stdout) == (0, f"{name}: fast (before: no label)\n")
    agent.send_signal(signal.SIGKILL)
    agent.wait()
    away = device.run("label", "undo")
    assert away.returncode == 75
    assert "does it run" in away.stderr
    device.start_agent()
    undone = device.run("label", "undo", "--window", name)
    assert (undone.returncode, undone.stdout) == (0, f"{name}: no label (before: fast)\n")
    for words, status in (
        (("set", name, "swim"), 65),
        (("set", "99999-0123456789abcdef", "fast"), 65),
        (("undo",), 65),
        (("skip", name), 0),
        (("set", name, "x" * 70), 65),
    ):
        assert device.run("label", *words).returncode == status, words


@pytest.mark.long
def test_systemds_socket_starts_the_page_and_it_ends_when_nobody_looks(
    device: PageDevice, listener: socket.socket
) -> None:
    port = listener.getsockname()[1]
    where = f"http://127.0.0.1:{port}"
    for _ in range(2):  # the second life takes over the same socket
        page = device.start("page", "--idle", "8", listener=listener)
        assert status_of(where) == 403
        assert status_of(device.link(port)) == 200
        assert page.wait(timeout=30) == 0, "it ends by itself"
    several = device.run("page", "--listen", "nowhere")
    assert several.returncode == 78
    assert "is not HOST:PORT" in several.stderr


@pytest.mark.long
@pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="SKIPPED LOUDLY: no chromium, or no chromedriver")
def test_the_keyboard_alone_labels_undoes_and_skips(device: PageDevice, listener: socket.socket) -> None:
    device.start_agent()
    page = device.start("page", listener=listener)
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))

    def text(name: str) -> str:
        return str(browser.find_element(By.ID, name).text)

    def until(true: Callable[[], Any], what: str) -> None:
        end = time.monotonic() + 30
        while not true():
            assert time.monotonic() < end, f"{what}: {text('ask-what')} | {text('said')} | {text('trouble')}"
            time.sleep(0.1)

    def press(key: str) -> None:
        browser.switch_to.active_element.send_keys(key)

    try:
        browser.get(device.link(listener.getsockname()[1]))
        until(
            lambda: "no model predicts yet, and" in text("ask-what"), "a window is proposed, with its reason"
        )
        until(lambda: "good (" in text("sensors"), "the live signal has its quality")
        until(lambda: browser.find_elements(By.CSS_SELECTOR, "#sensors canvas"), "the live signal is drawn")
        asked = text("ask-what").split()[1].rstrip(",")
        press("3")
        until(lambda: "is labelled fast: it is on the disk" in text("said"), "a press labels")
        shown = json.loads(device.run("label", "list", "--newest", "--format", "json").stdout)
        assert shown["labels"] == ["slow", "middle", "fast"]
        until(lambda: asked not in text("ask-what"), "the next window is proposed")
        press("u")
        until(lambda: "has no label again" in text("said"), "undo")
        # the stream goes on: the same window, or a newer one, is asked for
        until(lambda: len(text("ask-what").split()) > 1, "a window is asked for again")
        asked = text("ask-what").split()[1].rstrip(",")
        press("s")
        until(lambda: "is not asked for again" in text("said"), "skip")
        until(lambda: asked not in text("ask-what"), "another window is proposed")
        assert device.run("label", "undo").returncode == 65, "nothing is left to undo"
        press(Keys.TAB)
        assert browser.switch_to.active_element.text == "To the content", "focus is where a reader expects it"
        errors = [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
        assert errors == []
        wide = "return document.documentElement.scrollWidth - innerWidth"
        browser.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": 360, "height": 800, "deviceScaleFactor": 1, "mobile": True},
        )
        until(lambda: browser.execute_script(wide) <= 0, "nothing is cut off on a phone")
        assert browser.execute_script("return innerWidth") == 360
        page.kill()
        page.wait()
        until(lambda: "no answer" in text("connection"), "a page that lost its server says so")
        device.start("page", listener=listener)
        until(lambda: text("connection") == "live", "and it comes back by itself, with its session")
    finally:
        browser.quit()
