"""What devices say of themselves is shown as it is: it is no markup."""

import io

from rich.console import Console

from lichen.status import _print
from lichen.watch import FleetView
from protocol.messages import ModalityState, RoundAnnouncement, State, encode
from protocol.topics import Kind, broadcast_topic, device_topic


def test_words_of_devices_are_not_obeyed_as_markup() -> None:
    view = FleetView("f")
    state = State(
        status="online", device="a", modalities={"acc": ModalityState(reasons=("stuck [/x]", "[bold]"))}
    )
    now = RoundAnnouncement(task="t", round=1, rounds=2, phase="collecting", waiting_for="trouble [/y]")
    assert view.apply(device_topic("f", "a", Kind.STATE), encode(state))
    assert view.apply(broadcast_topic("f", Kind.ROUND), encode(now))
    said = io.StringIO()
    _print(view, Console(file=said, width=200), why=True)
    for words in ("stuck [/x]", "[bold]", "trouble [/y]"):
        assert words in said.getvalue()
