"""What the rules about the code share."""

from collections.abc import Iterator

import pytest

from tests.architecture import test_arch_wiring as wiring


@pytest.fixture(autouse=True, scope="package")
def _no_trees_afterwards() -> Iterator[None]:
    """A million nodes would make each later garbage collection of this process slow."""
    yield
    for cached in (wiring.trees, wiring.tree_of, wiring.nodes_of):
        cached.cache_clear()
