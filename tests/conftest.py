"""What every test shares."""

import gc
import os
import sys
from collections.abc import Generator, Iterator
from functools import cache
from itertools import chain, zip_longest
from typing import Any

import pytest
import structlog
from hypothesis import settings

# Before torch is imported anywhere. Two threads on tiny tensors spend their time waiting for each other: with
# another process on the machine, thirty times that of one. How work is split also shows in a loss's last bit.
os.environ["OMP_NUM_THREADS"] = "1"

# On a busy machine an example takes long once, and not when it is repeated: "flaky", for no fault.
settings.register_profile("lichen", deadline=None)
settings.load_profile("lichen")

pytest_plugins = [
    "tests.support.network.brokers",
    "tests.support.network.object_store",
    "tests.support.storage.engines",
]

WAITS = ("compat", "e2e", "faults")
"""Folders of tests that start fleets of processes, and mostly wait for them. The other tests compute."""
LONGEST = (
    "test_contract_methods.py",
    "test_arch_docs.py",
    "test_simulate_private.py",
    "test_arch_ownership.py",
    "test_protocol_fuzz.py",
    "test_console_lived_in.py",
    "test_cluster_rounds.py",
    "test_lichen_demo_report.py",
    "test_agent_e2e.py",
    "test_agent_serving.py",
    "test_coordinator_fanin.py",
    "test_coordinator_salvage.py",
    "test_runtime_link.py",
    "test_console_roles.py",
    "test_serving_within.py",
    "test_coordinator_ingest.py",
    "test_serving.py",
    "test_agent_personal.py",
    "test_fold_partitions.py",
    "test_arch_wiring.py",
    "test_runtime_bad_networks.py",
    "test_contract_differences.py",
    "test_coordinator_telemetry.py",
    "test_demo_status.py",
    "test_console_sign_in.py",
    "test_export_parity.py",
    "test_privacy_canaries.py",
    "test_world_seeds.py",
    "test_fuzz_decoders.py",
    "test_coordinator_kill.py",
    "test_export_several.py",
    "test_deploy_kills.py",
    "test_agent_identity_cuts.py",
    "test_arch_torch_free.py",
    "test_protocol_codecs.py",
    "test_world_protected_seeds.py",
    "test_identity_mosquitto.py",
    "test_coordinator_guided.py",
    "test_identity_service.py",
    "test_coordinator_app.py",
    "test_coordinator_routed.py",
    "test_broker_check.py",
    "test_export_version.py",
    "test_world_cli.py",
    "test_publish_site.py",
)
"""Files with the most work. They start first, so that no long one runs alone at the end."""

EXPORTS = (
    "test_networks_novel.py",
    "test_agent_several.py",
    "test_agent_personal.py",
    "test_contract_one_model.py",
    "test_export_version.py",
)
"""Files outside ``tests/unit/export`` that export in their own process."""
TOGETHER = ("tests/unit/export/", "tests/architecture/")
"""Folders whose tests run in one process each."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """As ``--dist loadfile``, but few processes do what is slow once a process.

    The first export takes 8 s of CPU, to parse all our code for the rules of the architecture 6.
    """
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling  # noqa: PLC0415 - xdist is not loaded without -n

    class Together(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            if file.rpartition("/")[2] in EXPORTS:
                return "further exports"
            return next((folder for folder in TOGETHER if file.startswith(folder)), file)

    return Together(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order the files for pytest-xdist: the longest first, and those that wait beside those that compute."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return
    files: dict[str, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.nodeid.partition("::")[0], []).append(item)
    rank = {name: place for place, name in enumerate(LONGEST)}
    ordered = sorted(files, key=lambda file: rank.get(file.rpartition("/")[2], len(LONGEST)))
    wait = [file for file in ordered if file.split("/")[1] in WAITS]
    compute = [file for file in ordered if file.split("/")[1] not in WAITS]
    pairs = chain.from_iterable(zip_longest(wait, compute))
    items[:] = [item for file in pairs if file is not None for item in files[file]]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect no garbage while 8,000 tests are made, of which none goes: a sixth of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Keep what is loaded by now out of later garbage collections: a sixth of the unit tests' time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _own_logging() -> Iterator[None]:
    """Whatever a test does to structlog's configuration (level, processors) ends with it."""
    structlog.reset_defaults()
    yield
    structlog.reset_defaults()


@pytest.fixture(autouse=True)
def _one_torch_thread() -> Iterator[None]:
    """Whatever a test does to torch's threads ends with it."""
    yield
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _translations_once() -> None:
    """torch.onnx parses the sources of 500 translations for each export: as long as a small export takes."""
    registration = sys.modules.get("torch.onnx._internal.exporter._registration")
    if registration is None:
        return
    registry = registration.ONNXRegistry
    if not hasattr(registry.from_torchlib, "cache_info"):
        registry.from_torchlib = staticmethod(cache(registry.from_torchlib))
