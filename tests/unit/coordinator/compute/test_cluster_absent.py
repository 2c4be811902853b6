"""A Ray cluster that cannot be used, without one: what the operator reads."""

import pytest
from pydantic import ValidationError

from coordinator.compute.runner import ClusterRunner
from coordinator.config.compute import ComputeSettings
from protocol.errors import Misconfigured


@pytest.mark.parametrize("address", ["ray://head:10001", "head", "http://head:6379", "head:", "a b:1"])
def test_an_address_of_another_form_is_refused(address):
    with pytest.raises(ValidationError):
        ComputeSettings(ray=address)


@pytest.mark.long
async def test_a_cluster_that_is_not_there_at_the_start_is_named_with_its_key(tmp_path):
    pytest.importorskip("ray", reason="the extra `ray` is not installed")
    for fallback in (False, True):
        settings = ComputeSettings(ray="127.0.0.1:1", fallback=fallback)
        runner = ClusterRunner(settings, tmp_path / "state" / "jobs", 60.0)
        if fallback:
            await runner.require()
        else:
            with pytest.raises(Misconfigured, match=r"compute.ray = '127.0.0.1:1': no Ray head answers"):
                await runner.require()
        await runner.close()
