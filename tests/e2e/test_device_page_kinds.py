"""The page of a device in a browser, on images, sound, vectors and texts."""

import socket
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import expect

from models.data.streams.recording import Recording, Stream
from protocol.tasks.task import Modality, Window
from tests.support.console.browser import chromium, needs_browser, page_of, violations
from tests.support.sensors.page_device import page_device
from tests.support.tasks import small_task

TASK = small_task(
    (
        Modality(name="camera", kind="image", channels=3, height=20, width=30, rate_hz=5),
        Modality(name="mic", kind="sound", channels=1, rate_hz=8000),
        Modality(name="embedding", kind="vector", channels=12, rate_hz=5),
        Modality(name="words", kind="text", channels=64, rate_hz=1),
    ),
    window=Window(length_s=2.0, stride_s=1.0),
)
PIXEL = """(where) => {
  const canvas = document.querySelector(where);
  return [canvas.width, canvas.height, ...canvas.getContext("2d").getImageData(3, 2, 1, 1).data];
}"""


def recording() -> Recording:
    """Pictures with one pixel that never changes; without labels."""
    rng = np.random.default_rng(0)
    t = np.arange(300) / 5
    pictures = rng.integers(0, 256, (300, 3, 20, 30)).astype(np.uint8)
    pictures[:, :, 2, 3] = (200, 100, 50)
    sound = rng.normal(0, 0.1, (8000 * 60, 1)).astype(np.float32)
    return Recording(
        {
            "camera": Stream(t, pictures.reshape(300, -1), size=(3, 20, 30)),
            "mic": Stream(np.arange(len(sound)) / 8000, sound),
            "embedding": Stream(t, rng.normal(size=(300, 12)).astype(np.float32)),
            "words": Stream(t[::5], np.zeros((60, 0), np.float32), texts=("it boils",) * 60),
        }
    )


@pytest.mark.long
@needs_browser
def test_the_page_shows_pictures_vectors_and_texts_and_asks_for_their_windows(tmp_path: Path) -> None:
    with (
        page_device(tmp_path, task=TASK, recording=recording(), speed=5) as device,
        socket.create_server(("127.0.0.1", 0)) as listener,
        chromium() as browser,
        page_of(browser) as page,
    ):
        device.start_agent()
        device.start("page", listener=listener)
        page.goto(device.link(listener.getsockname()[1]))
        for part in ("sensors", "ask-plots"):
            shown = page.locator(f"#{part}")
            expect(shown).to_contain_text("a text of 21 n-grams", timeout=60_000)
            expect(shown.get_by_role("img", name="image of camera")).to_be_visible(timeout=60_000)
            pixel = page.evaluate(PIXEL, f"#{part} [role=img]")
            assert pixel == [30, 20, 200, 100, 50, 255], "red above green above blue"
            expect(shown.locator(".uplot")).to_have_count(2)  # the sound and the vector
        expect(page.locator("#sensors")).to_contain_text("good (", timeout=60_000)
        assert violations(page) == []
