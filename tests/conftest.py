"""What every test shares."""

import os
from collections.abc import Iterator

import pytest
import structlog
from hypothesis import settings

# Before torch is imported anywhere. Two threads on tiny tensors spend their time waiting for each other: with
# another process on the machine, thirty times that of one.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# On a busy machine an example takes long once, and not when it is repeated: "flaky", for no fault.
settings.register_profile("lichen", deadline=None)
settings.load_profile("lichen")

pytest_plugins = ["tests.support.brokers"]


@pytest.fixture(autouse=True)
def _own_logging() -> Iterator[None]:
    """Whatever a test does to structlog's configuration (level, processors) ends with it."""
    structlog.reset_defaults()
    yield
    structlog.reset_defaults()
