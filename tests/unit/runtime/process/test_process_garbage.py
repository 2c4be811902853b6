"""Objects that are loaded while the collector is paused cost no later collection."""

import gc

import pytest

from runtime.process.garbage import collector_paused


def test_what_was_loaded_meanwhile_is_left_out_of_later_collections():
    frozen = gc.get_freeze_count()
    with collector_paused():
        assert not gc.isenabled()
        loaded = [[k] for k in range(10_000)]
    assert gc.isenabled()
    assert gc.get_freeze_count() >= frozen + 10_000
    assert len(loaded) == 10_000


def test_after_an_error_garbage_is_collected_again():
    with pytest.raises(ValueError, match="damaged"), collector_paused():
        raise ValueError("damaged")
    assert gc.isenabled()
