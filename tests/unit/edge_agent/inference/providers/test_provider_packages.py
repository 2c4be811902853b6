"""A provider of a package: allowed by hash, imported by models' processes, compiled, measured, given up."""

import asyncio
import json
import sys
from functools import partial

import numpy as np
import pytest

from edge_agent.config.agent import DeploySettings, TrialSettings
from edge_agent.deployment.events import DeploymentPhase
from edge_agent.inference.providers import accelerators as module
from edge_agent.inference.providers import catalog
from edge_agent.inference.serving.variants import benchmark
from runtime.process import landlock
from tests.support.accelerators.fake_provider import MODULE, NAME, PROVIDER, installed, slow_bundle
from tests.support.agent.predicting import predicting
from tests.support.agent.serving import judged, probabilities, put, watched
from tests.support.coordinator.trial_device import Device
from tests.support.services import beside, until

CONFINED = pytest.mark.skipif(
    not landlock.version(), reason="SKIPPED LOUDLY: this kernel has no Landlock, nothing confines a provider"
)


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """Taken as twice as fast as the CPU: only :func:`compiled_once` measures it."""

    async def timed(model, _sample):
        return 0.001 if model._options.provider.name == PROVIDER else 0.002

    with installed(tmp_path, monkeypatch) as found:
        monkeypatch.setattr(benchmark, "_median_s", timed)
        yield found


@pytest.fixture
def folder(tmp_path):
    return put(tmp_path / "a", slow_bundle())


def figures(running):
    return running._accelerators.status()["accelerators"]


async def answered(running, count=1):
    seen = watched(running)
    before = len(seen)
    running.enqueue(judged())
    await until(lambda: len(seen) == before + count)
    return seen[-1]


@pytest.mark.long
async def test_it_is_compiled_once_kept_and_runs_what_it_does_faster(tmp_path, monkeypatch):
    folder = put(tmp_path / "a", slow_bundle(width=1024))
    with installed(tmp_path, monkeypatch) as fake:
        await compiled_once(fake, folder)


async def compiled_once(fake, folder):
    async with predicting(fake.inference()) as running:
        running.enqueue(judged(8))
        model = await running.load(folder)
        assert model.choice["provider"] == PROVIDER, model.choice
        running.activate(model)
        seen = await answered(running)
        assert np.allclose(seen.answers["label"], probabilities(judged()), atol=1e-5)
        now = figures(running)
        assert (now["engines_compiled"], now["engine_hits"], now["engines"]) == (1, 1, 1)
        assert now["compile_s"] > 0
        assert now["providers"][0]["device"] == "fake 9000"
        assert now["compiling"] is None
    assert MODULE not in sys.modules, "the agent's process imported the package"
    engine = next(fake.cache.iterdir())
    assert not (engine / "stray").exists(), "a model that runs wrote into its engine"
    async with predicting(fake.inference()) as running:
        running.enqueue(judged(8))
        assert (await running.load(folder)).choice["provider"] == PROVIDER
        assert figures(running)["engines_compiled"] == 0


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"sha256": "0" * 64}, "they come from another build, or were changed"),
        pytest.param({"version": "1.0"}, "1.2.0 is installed here", marks=pytest.mark.long),
        pytest.param({"name": "lichen-no-such-thing"}, "is not installed", marks=pytest.mark.long),
    ],
)
async def test_another_package_than_the_owner_allows_is_refused_in_words(fake, folder, changed, words):
    package = fake.package.model_copy(update=changed)
    async with predicting(fake.inference(packages=(package,))) as running:
        assert (await running.load(folder)).choice["provider"] == "CPUExecutionProvider"
        assert words in figures(running)["providers"][0]["why"]


@pytest.mark.long
async def test_a_package_that_changes_after_the_agent_s_check_is_not_imported(fake, folder, monkeypatch):
    """The process of the model checks again, just before it imports."""
    asked = catalog._ask

    async def late(zygote, provider):
        path = fake.folder / f"{MODULE}.py"
        path.write_text(path.read_text() + "\nraise SystemExit('imported')\n")
        return await asked(zygote, provider)

    monkeypatch.setattr(catalog, "_ask", late)
    async with predicting(fake.inference()) as running:
        await running.load(folder)
        assert "or were changed" in figures(running)["providers"][0]["why"]


@pytest.mark.long
async def test_without_permission_it_is_not_even_looked_at(fake, folder):
    async with predicting(fake.inference(packages=())) as running:
        assert (await running.load(folder)).choice["provider"] == "CPUExecutionProvider"
        assert figures(running)["providers"] == []
    assert not fake.cache.exists()


@pytest.mark.parametrize(
    ("mood", "words"),
    [
        ({"compile": "crash"}, "SIGKILL"),
        pytest.param({"compile": "hang"}, "not answered in 1 s", marks=pytest.mark.long),
        pytest.param({"compile": "link"}, "Permission denied", marks=[CONFINED, pytest.mark.long]),
        pytest.param({"compile": "nothing"}, "wrote no compiled model", marks=pytest.mark.long),
        pytest.param({"compile": "huge"}, "infer.engine_bytes is 100000", marks=pytest.mark.long),
        ({"as": "wrong.onnx"}, "agrees on"),
    ],
)
async def test_one_that_fails_while_it_compiles_or_is_wrong_leaves_the_model_to_the_cpu(
    fake, folder, mood, words, monkeypatch
):
    monkeypatch.setattr(module, "_WATCH_S", 0.05)
    fake.feels(**mood)
    limits = {"compile_timeout_s": 1.0 if mood.get("compile") == "hang" else 60.0, "engine_bytes": 100_000}
    async with predicting(fake.inference(**limits)) as running:
        running.enqueue(judged(8))
        model = await running.load(folder)
        assert model.choice["provider"] == "CPUExecutionProvider"
        assert words in model.choice["why"]
        running.activate(model)
        seen = await answered(running)
        assert np.allclose(seen.answers["label"], probabilities(judged()), atol=1e-5)
        assert not list(fake.cache.glob("*.part")), "what it wrote is still there"


@pytest.mark.long
async def test_a_compiler_that_failed_twice_is_left_out_of_the_next_versions(fake, tmp_path):
    fake.feels(compile="crash")
    async with predicting(fake.inference()) as running:
        words = []
        for version in (1, 2, 3):
            folder = put(tmp_path / str(version), slow_bundle(version))
            (folder / "choice.json").unlink(missing_ok=True)
            words.append((await running.load(folder)).choice["why"])
    assert "SIGKILL" in words[1]
    assert "left out until the agent starts again" in words[2]


@pytest.mark.long
async def test_another_driver_makes_another_engine(fake, folder):
    for driver in ("1", "2"):
        fake.feels(driver=driver)
        async with predicting(fake.inference()) as running:
            await running.load(folder)
            assert figures(running)["engines_compiled"] == 1
    assert len(list(fake.cache.iterdir())) == 2


@pytest.mark.parametrize(
    ("mood", "words"),
    [
        pytest.param({"unplugged": True}, "not plugged in", marks=pytest.mark.long),
        pytest.param({"look": "crash"}, "SIGSEGV", marks=pytest.mark.long),
        pytest.param({"look": "hang"}, "not answered in 1 s", marks=pytest.mark.long),
    ],
)
async def test_hardware_that_is_not_there_at_the_start_is_named(fake, folder, mood, words, monkeypatch):
    monkeypatch.setattr(catalog, "_LOOK_S", 1.0)
    async with predicting(fake.inference()) as running:
        assert (await running.load(folder)).choice["provider"] == PROVIDER
    fake.feels(**mood)
    async with predicting(fake.inference()) as running:
        assert (await running.load(folder)).choice["provider"] == "CPUExecutionProvider"
        assert words in figures(running)["providers"][0]["why"]
    fake.feels()
    async with predicting(fake.inference()) as running:
        assert (await running.load(folder)).choice["provider"] == PROVIDER, "it is plugged in again"
        assert figures(running)["engines_compiled"] == 0


@pytest.mark.parametrize(
    ("mood", "words", "lost"),
    [
        pytest.param(
            {"unplugged": True},
            "failed 2 times in a row: the model does not run: the device was lost",
            1,
            marks=pytest.mark.long,
        ),
        pytest.param(
            {"run": "hang"},
            "hangs: the model's process: it has not answered in 1 s",
            0,
            marks=pytest.mark.long,
        ),
    ],
)
async def test_one_that_goes_away_or_hangs_while_it_runs_gives_way_to_the_cpu(
    fake, folder, mood, words, lost
):
    async with predicting(fake.inference(timeout_s=1.0)) as running:
        running.enqueue(judged(8))
        model = await running.load(folder)
        assert model.choice["provider"] == PROVIDER
        running.activate(model)
        assert not (await answered(running)).error
        fake.feels(**mood)
        for _ in range(lost):
            assert "the device was lost" in (await answered(running)).error
        seen = await answered(running)
        assert np.allclose(seen.answers["label"], probabilities(judged()), atol=1e-5)
        assert running.model is model
        assert model.choice["provider"] == "CPUExecutionProvider"
        assert words in model.choice["why"]


@CONFINED
@pytest.mark.long
async def test_a_provider_that_cannot_read_its_engine_without_writing_compiles_at_each_start(fake, folder):
    fake.feels(insists=True)
    async with predicting(fake.inference()) as running:
        model = await running.load(folder)
        assert model.choice["measured"][1]["agreement"] == 1.0
        assert [path.name for path in next(fake.cache.iterdir()).iterdir()] == ["engine.json"]
        (folder / "choice.json").unlink()
        await running.load(folder)
        assert (figures(running)["engines_compiled"], figures(running)["engine_hits"]) == (1, 0)


@pytest.mark.long
async def test_an_engine_that_a_power_cut_tore_is_compiled_again(fake, folder):
    async with predicting(fake.inference()) as running:
        await running.load(folder)
    engine = next(fake.cache.iterdir())
    (engine / "compiled.onnx").write_bytes(b"torn")
    async with predicting(fake.inference()) as running:
        assert (await running.load(folder)).choice["provider"] == PROVIDER
        now = figures(running)
        assert (now["engines_compiled"], now["engines_removed"]) == (1, 1)


@pytest.mark.long
async def test_while_it_compiles_the_status_says_so_and_the_former_model_answers(fake, folder, tmp_path):
    fake.feels(compile_s=1.5)
    running_ = fake.inference()
    async with predicting(running_) as running:
        before = put(tmp_path / "before")
        (before / "choice.json").unlink(missing_ok=True)
        running.activate(await running.load(before))
        loading = asyncio.create_task(running.load(folder))
        await until(lambda: figures(running)["compiling"] is not None)
        wait = next(iter(running._accelerators.waits()))
        assert f"{PROVIDER} compiles version 1" in wait.why
        assert (wait.until or 0.0) - (wait.since or 0.0) == pytest.approx(1800)
        assert not (await answered(running)).error
        assert not loading.done()
        await loading


@pytest.mark.long
async def test_a_trial_begins_when_the_compiler_has_ended(fake, tmp_path):
    """It compiles for longer than a trial may last, and passes all the same."""
    settings = DeploySettings(trial=TrialSettings(windows=4, deadline_s=1))
    running = fake.inference(providers=(PROVIDER,))
    device = Device(tmp_path / "state", tmp_path / "shelf", runner=running, settings=settings)
    executor = device.deployment.executor

    async def passes(version):
        await device.runs(version)
        while device.record.committed is None or device.record.committed.version != version:
            running.enqueue(judged(4))
            await asyncio.sleep(0.05)

    inference = partial(running.run, observe=executor.observe)
    async with beside(device.deployment.run, executor.run, inference, forever=True):
        device.point(1)
        await passes(1)
        fake.feels(compile_s=2.5, driver="2")
        device.point(2)
        await until(lambda: figures(running)["compiling"] is not None, 20)
        assert (device.running, executor.phase) == (1, DeploymentPhase.FETCHED)
        await passes(2)
        assert device.record.trial is None
        assert device.record.committed.version == 2


def test_the_command_prints_the_table_for_agent_toml(fake):
    from typer.testing import CliRunner  # noqa: PLC0415 - only here

    from lichen.commands.task import app  # noqa: PLC0415 - as above

    said = CliRunner().invoke(app, ["package", NAME]).stdout
    assert json.dumps(fake.package.sha256) in said
    assert "[[infer.packages]]" in said
