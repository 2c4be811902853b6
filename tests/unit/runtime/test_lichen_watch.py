"""The fleet's picture is folded from topics; what cannot be read is counted and changes nothing."""

from protocol.messages import Metric, ModalityState, Receipt, RoundAnnouncement, State, encode
from protocol.topics import Kind, broadcast_topic, device_topic
from runtime.fleet_view import FleetView


def announce(version: int, *, round_: int, accepted: tuple[str, ...] = (), up: int = 0) -> bytes:
    metrics = {"accuracy": 0.5 + version / 10} if version >= 0 else {}
    return encode(
        RoundAnnouncement(
            task="t",
            round=round_,
            rounds=9,
            phase="collecting",
            version=max(0, version),
            selected=("a", "b"),
            accepted=accepted,
            metrics=metrics,
            bytes_up=up,
        )
    )


def test_rounds_keep_their_first_bytes_and_who_delivered() -> None:
    view, topic = FleetView("f"), broadcast_topic("f", Kind.ROUND)
    for payload in (
        announce(-1, round_=1, accepted=("a",)),
        announce(-1, round_=1, accepted=("a", "b")),
        announce(1, round_=2, up=100),
        announce(1, round_=2, accepted=("b",), up=180),
    ):
        assert view.apply(topic, payload)
    assert view.history[1].bytes_up == 100
    assert view.accuracy() == 0.6
    assert view.delivered() == {"b"}


def test_a_receipt_counts_before_the_announcement_says_so() -> None:
    view = FleetView("f")
    view.apply(broadcast_topic("f", Kind.ROUND), announce(1, round_=2, accepted=("a",)))
    for device, status in (("b", "accepted"), ("c", "refused")):
        receipt = Receipt(task="t", round=2, digest="0" * 64, status=status)
        view.apply(device_topic("f", device, Kind.RECEIPT), encode(receipt))
    assert view.delivered() == {"a", "b"}


def test_a_will_keeps_what_the_device_had_said() -> None:
    view, topic = FleetView("f"), device_topic("f", "a", Kind.STATE)
    known = {"gyroscope": ModalityState(windows=(1, 2), missing=0.25, quality=0.5)}
    view.apply(topic, encode(State(status="online", device="a", windows=3, modalities=known)))
    view.apply(topic, encode(State(status="offline", device="a")))
    metric = encode(Metric(device="a", round=4, metrics={"loss": 1.5}))
    view.apply(device_topic("f", "a", Kind.METRIC), metric)
    device = view.devices["a"]
    assert (device.status, device.windows, device.round) == ("offline", 3, 4)
    assert device.modalities["gyroscope"].missing == 0.25
    assert device.metrics == {"loss": 1.5}


def test_what_cannot_be_read_is_counted() -> None:
    view = FleetView("f")
    assert not view.apply("lichen/v1/f/b/round", b"{")
    assert not view.apply("somebody/else", b"{}")
    assert not view.apply(device_topic("f", "a", Kind.METRIC), announce(1, round_=1))
    assert view.refused == 3
    assert view.round is None
