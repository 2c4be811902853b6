"""The account of a version is shown everywhere in the same words, and travels with its bundle."""

import asyncio
import json

from typer.testing import CliRunner

from coordinator.cli.main import app
from coordinator.cli.round import app as rounds
from coordinator.status.history import read
from coordinator.status.versions import read_version
from protocol.tasks.folding import Privacy
from protocol.topics import Kind
from tests.support.coordinator.bench import bench
from tests.support.coordinator.fake import TinyJobs, frame, header, tiny_task

PRIVATE = tiny_task(count=1).model_copy(update={"privacy": Privacy(clip=8.0, noise_multiplier=20.0)})
WORDS = "after 1 round: epsilon 0.341 at delta 1e-05 for one device (replaced by another)"


class Recording(TinyJobs):
    """Remembers the lineages of its exports."""

    def __init__(self) -> None:
        super().__init__()
        self.lineages: list = []

    async def export(self, state, lineage):
        self.lineages.append(lineage)
        return await super().export(state, lineage)


async def test_the_same_words_are_shown_everywhere(tmp_path) -> None:
    jobs = Recording()
    async with bench(tmp_path, PRIVATE, jobs) as made:
        await made.online("a")
        await made.phase("collecting")
        base = made.app.driver.state.manifest
        await made.give("a", Kind.UPDATE, frame(header("a", 1, base), 0.5))
        await made.phase("done")
        assert read_version(made.app.storage.store, 1).privacy == WORDS
        assert read_version(made.app.storage.store, 0).privacy.startswith("after 0 rounds: epsilon 0 ")
    folder = tmp_path / "coordinator"
    found = read(folder)
    assert [row["privacy"]["words"] for row in found["versions"]][1] == WORDS
    assert found["rounds"][0]["privacy"]["epsilon"] == found["versions"][1]["privacy"]["epsilon"]
    for lineage in jobs.lineages:
        assert lineage.privacy["words"] == WORDS
        assert lineage.privacy["unit"] == "device"
    config = tmp_path / "coordinator.toml"
    config.write_text(
        f'fleet = "test"\nstate_dir = "{folder}"\ntask = "task.toml"\n[mqtt]\nhost = "localhost"\n'
    )

    def shown(command, *words: str) -> str:
        return CliRunner().invoke(command, [*words, "--config", str(config)]).stdout

    history = await asyncio.to_thread(shown, app, "history")
    status = await asyncio.to_thread(shown, app, "status")
    explained = await asyncio.to_thread(shown, rounds, "explain")
    for text in (history, status, explained):
        assert f"privacy: {WORDS}" in text
    as_json = json.loads(await asyncio.to_thread(shown, rounds, "explain", "--format", "json"))
    assert as_json["privacy"]["adjacency"] == "replace_one"


async def test_nothing_is_said_of_a_task_without_the_table(tmp_path) -> None:
    async with bench(tmp_path, tiny_task(count=1)) as made:
        await made.online("a")
        await made.phase("collecting")
        base = made.app.driver.state.manifest
        await made.give("a", Kind.UPDATE, frame(header("a", 1, base), 0.5))
        await made.phase("done")
        assert read_version(made.app.storage.store, 1).privacy == ""
    assert [row["privacy"] for row in read(tmp_path / "coordinator")["versions"]] == [None, None]
