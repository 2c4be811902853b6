"""The benchmark of secure aggregation: what it measures is a real round, and counts all that is sent."""

import numpy as np

from lichen_lab.benchmarks.suite.secure.bench import BENCH, MeasuredUpdate, MeteredDevice
from lichen_lab.benchmarks.suite.wire_bytes import message_bytes
from lichen_lab.simulation.secure_rounds.driver import play
from lichen_lab.simulation.secure_rounds.fleet import fleet_of
from models.tensors import flatten
from protocol.secure_aggregation.messages import encode
from protocol.secure_aggregation.ring import to_numbers
from protocol.tasks.folding import SecureAggregation

OPTIONS = SecureAggregation(identities="none", ring_bits=32, min_devices=3)


def test_a_metered_device_counts_each_message_that_it_sends_and_gets():
    vectors = {f"d{i}": np.zeros(50, np.uint32) for i in range(4)}
    coordinator, devices = fleet_of(vectors, OPTIONS, device=MeteredDevice)
    transcript = play(coordinator, devices)
    for name, device in devices.items():
        assert isinstance(device, MeteredDevice)
        sent = [message_bytes(encode(message)) for who, _, message in transcript.sent if who == name]
        got = [message_bytes(encode(message)) for _, who, message in transcript.sent if who == name]
        assert device.up == sent
        assert len(sent) == 4
        assert device.down == sum(got)
        assert device.cpu_s > 0


def test_the_measured_vector_holds_the_whole_update_and_the_weights_of_its_tensors():
    update = MeasuredUpdate.of_noise()
    numbers = to_numbers(update.vector(OPTIONS), 32)
    model = flatten(update.state)
    assert numbers.size == sum(x.size for x in model.values()) + len(model)
    assert np.count_nonzero(numbers) > 100_000
    assert {goal.limit for goal in BENCH.goals} == {50, 10}
