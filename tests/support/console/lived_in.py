"""The state folder of a small fleet that has lived: rounds, refusals, a quarantine, admissions, actions."""

import time
from pathlib import Path
from typing import Any

from coordinator.audit.chain import Person
from coordinator.audit.log import AuditLog
from coordinator.config.coordinator import CoordinatorSettings
from coordinator.identity.authority import Issued
from coordinator.identity.store import IdentityStore
from coordinator.storage import schema
from coordinator.telemetry.history import added, flat
from protocol import messages
from protocol.errors import Reason, Refused
from protocol.messages import Metric
from protocol.telemetry import ModalityTelemetry, Telemetry
from protocol.topics import Kind
from tests.support.console.fleet_tables import state_of
from tests.support.coordinator.bench import Bench, bench
from tests.support.coordinator.fake import frame, header, tiny_task

DEVICES = tuple(f"barn-{number}" for number in range(1, 9))
MARKUP = "<script>alert('x')</script>"
ANNA = Person("anna", "operator", "certificate")
DAY_S = 86400.0


def telemetry_of(number: int, minute: int) -> Telemetry:
    """What a device reports about itself; it differs from minute to minute."""
    wave = (minute * 7 + number * 3) % 20 / 20
    return Telemetry(
        uptime_s=60.0 * minute,
        spool_updates=minute % 3,
        spool_bytes=1000 * (minute % 3),
        disk_free_bytes=5_000_000_000 - 1_000_000 * minute,
        memory_bytes=90_000_000 + 100_000 * minute,
        memory_available_bytes=400_000_000,
        cpu_share=0.05 + wave / 10,
        load_share=0.2 + wave / 5,
        temperature_c=48.0 + 5 * wave,
        reconnects=minute // 20,
        predictions_per_s=0.8,
        latency_p50_s=0.01 + wave / 100,
        latency_p95_s=0.03 + wave / 50,
        modalities={
            "acc": ModalityTelemetry(windows_per_s=0.8, quality=0.9 - wave / 5),
            "gyro": ModalityTelemetry(
                windows_per_s=0.4 + wave / 10, quality=None if minute % 9 == 0 else 0.6
            ),
        },
    )


async def lived_in(folder: Path, **changes: Any) -> CoordinatorSettings:
    """Run a coordinator on a fake link through two rounds; its settings, after its end."""
    task = tiny_task(count=3, min_devices=4, deadline_s=3.0)
    async with bench(folder, task, quarantine={"refusals": 3, "first_s": 3600.0}, **changes) as made:
        # The device that is refused first: a round may open before the last ones are there.
        for number, name in sorted(enumerate(DEVICES, 1), key=lambda one: one[1] != "barn-8"):
            state = state_of(number, name, status="online", roles=("observe", "train"), trial=None)
            await made.give(name, Kind.STATE, messages.encode(state))
        await made.phase("collecting")
        await _round(made, 1, refused=("barn-8",))
        await made.phase("collecting")
        await _round(made, 2, refused=())
        await made.until(lambda: made.app.driver.state.round == 3)
        await made.phase("collecting")
        for _ in range(3):
            made.app.quarantine.refused("barn-7", Refused(Reason.NON_FINITE, MARKUP))
        made.app.receipts.send_refused("barn-7", 3, None, Refused(Reason.NON_FINITE, f"tensor {MARKUP}"))
        told = telemetry_of(1, 1)
        await made.give(
            "barn-1", Kind.METRIC, messages.encode(Metric(device="barn-1", metrics={}, telemetry=told))
        )
        settings = made.app.settings
    _with_histories(settings)
    _with_identities(settings)
    _with_actions(settings)
    return settings


async def _round(made: Bench, number: int, refused: tuple[str, ...]) -> None:
    """All selected devices send an update; ``refused``: of the wrong size."""
    base, selected = made.app.driver.state.manifest, tuple(made.app.driver.state.selected)
    for name in sorted(selected, key=lambda one: one not in refused):
        update = frame(
            header(name, number, base, metrics={"loss": 0.5 / number}), size=65 if name in refused else 64
        )
        await made.give(name, Kind.UPDATE, update)
        if name in refused:  # before the others close the round
            await made.until(lambda name=name: any(device == name for device, _reason in made.refusals()))
    await made.until(lambda: made.app.driver.state.round > number)


def _with_histories(settings: CoordinatorSettings) -> None:
    now, names = time.time(), frozenset({"acc", "gyro"})
    with settings.location.database() as store:
        for number, device in enumerate(DEVICES[:6]):
            history: dict[str, Any] = {}
            for minute in range(90):
                history = added(
                    history, now - 60.0 * (90 - minute), flat(telemetry_of(number, minute), names)
                )
            store.put(schema.telemetry_history, device=device, history=history)


def _with_identities(settings: CoordinatorSettings) -> None:
    now = time.time()
    with IdentityStore(settings.location) as book:
        for number, (device, days) in enumerate(
            (("barn-1", 80.0), ("barn-2", 5.0), ("barn-3", 60.0), ("barn-4", 70.0))
        ):
            token, key = book.invite(device, 3600.0), f"{number:x}" * 64
            book.claim(token, device, key)
            book.keep(device, key, Issued("certificate", 1000 + number, now + days * DAY_S))
        for number, device in enumerate(("yard-1", "yard-2")):
            book.claim(book.invite(None, 3600.0), device, f"{number + 8:x}" * 64)
        book.revoke("barn-4")
        book.invite("barn-9", DAY_S)
        book.invite(None, 3600.0)


def _with_actions(settings: CoordinatorSettings) -> None:
    with AuditLog(settings.location) as log:
        for action, target in (
            ("device.invite", "barn-1"),
            ("device.revoke", "barn-4"),
            ("rollout.create", "version 2"),
            ("device.approve", MARKUP),
        ):
            with log.acting(ANNA, action, target) as doing:
                doing.outcome = "done"
        with log.acting(Person("root (sudo of ben)", "admin", "command line"), "device.release", "barn-7"):
            pass
