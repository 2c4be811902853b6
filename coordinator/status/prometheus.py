"""Prometheus metrics, where ``metrics.prometheus_port`` is set: read from the parts when they are scraped."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, get_args

from coordinator.aggregation.device_weights import FULL, newest, shares
from coordinator.rollout.model import Member, Phase
from protocol.errors import Misconfigured
from runtime.storage.disk import DISK

if TYPE_CHECKING:
    import threading

    from coordinator.app import Coordinator

ANY: Final = ""
"""The label of ``lichen_coverage`` where devices learn without labels: windows of any class, or of none; of
graphs, triples."""


class Exporter:
    """Serves ``/metrics`` from a thread of its own."""

    def __init__(self, app: "Coordinator") -> None:
        self._app = app
        self._server: Any = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Listen, if a port is set.

        Raises:
            Misconfigured: prometheus-client is not installed, or the port is taken.
        """
        settings = self._app.settings.metrics
        if not settings.prometheus_port:
            return
        try:
            import prometheus_client  # noqa: PLC0415 - optional: only where a port is set
        except ImportError:
            raise Misconfigured(
                "metrics.prometheus_port is set, but prometheus-client is missing: "
                "pip install 'lichen[coordinator]'"
            ) from None
        registry = prometheus_client.CollectorRegistry()
        registry.register(_Collector(self._app))
        try:
            self._server, self._thread = prometheus_client.start_http_server(
                settings.prometheus_port, settings.address, registry
            )
        except OSError as error:
            raise Misconfigured(f"metrics.prometheus_port: {settings.prometheus_port}: {error}") from None

    def stop(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
        if self._thread is not None:
            self._thread.join(timeout=5)


class _Collector:
    """What ``prometheus_client`` asks at each scrape."""

    def __init__(self, app: "Coordinator") -> None:
        self._app = app

    def collect(self) -> Iterable[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily  # noqa: PLC0415 - see Exporter

        app = self._app
        state = app.driver.state
        up, down = app.traffic.totals()
        wear = DISK.get().wear()
        for name, words, value in (
            ("lichen_round", "The round that is open", state.round),
            ("lichen_version", "The newest version", state.version),
            ("lichen_devices_online", "Devices that are online", len(app.roster.online())),
            ("lichen_selected", "Devices selected in this round", len(state.selected)),
            ("lichen_delivered", "Devices that delivered in this round", len(state.delivered)),
            (
                "lichen_fleet_secrets",
                "Different fleet secrets of online devices with graphs; more than 1 is wrong",
                len(set(app.roster.secrets().values())),
            ),
            (
                "lichen_broker_unproven",
                "1: nothing shows that the broker acts on the newest revocation list",
                app.admission.broker_unproven(),
            ),
            ("lichen_quarantined", "Devices in quarantine", len(app.standing.all_barred())),
        ):
            yield GaugeMetricFamily(name, words, value=float(value))
        for name, words, value in (
            ("lichen_bytes_up", "Bytes received from devices since the task began", up),
            ("lichen_bytes_down", "Bytes sent to devices since the task began", down),
            ("lichen_updates_accepted", "Updates accepted since the start", app.teller.accepted),
            ("lichen_messages_dropped", "Messages beyond a device's share", app.ingest.lanes.dropped),
            ("lichen_blobs_withheld", "Requests for blobs of another device", app.server.withheld),
            ("lichen_fetches_over_budget", "Requests beyond a device's bytes a day", app.server.over_budget),
            ("lichen_states_coalesced", "States of devices that say them too often", app.states.coalesced),
            ("lichen_messages_turned_away", "Messages of barred devices", app.guard.turned_away),
            ("lichen_update_groups", "Transactions that accepted them", app.receiver.commits.groups),
            *((f"lichen_disk_{what}", f"Disk {what} since the start", n) for what, n in wear.items()),
        ):
            yield CounterMetricFamily(name, words, value=float(value))
        refused = CounterMetricFamily("lichen_refused", "Refusals since the start", labels=["reason"])
        for reason, count in sorted(app.teller.refused.items()):
            refused.add_metric([reason], float(count))
        yield refused
        issued, turned_down = app.admission.counts()
        yield CounterMetricFamily(
            "lichen_certificates_issued", "Device certificates issued since the start", value=float(issued)
        )
        enrolments = CounterMetricFamily(
            "lichen_enrolments_refused", "Enrolments refused since the start", labels=["reason"]
        )
        for reason, count in sorted(turned_down.items()):
            enrolments.add_metric([reason.value], float(count))
        yield enrolments
        yield self._coverage()
        yield from self._rollout()
        yield from self._weighing()

    def _weighing(self) -> Iterable[Any]:
        """Where the method is guided, of the newest round: the lightest devices, and how many warnings."""
        from prometheus_client.core import GaugeMetricFamily  # noqa: PLC0415 - see Exporter

        found = newest(self._app.store)
        if found is None:
            return
        words = "Weight of a device in the newest version's fold; 1 is an equal share"
        family = GaugeMetricFamily("lichen_device_weight", words, labels=["device", "part"])
        for part, weights in found["weights"].items():
            for _, device, share in list(shares({part: weights}))[:FULL]:
                family.add_metric([device, part], share)
        yield family
        yield GaugeMetricFamily(
            "lichen_weighing_warnings",
            "Warnings about the newest version's weights, such as of devices that are pushed out",
            value=float(len(found["warnings"])),
        )

    def _rollout(self) -> Iterable[Any]:
        """Of the last rollout, where there are any."""
        from prometheus_client.core import GaugeMetricFamily  # noqa: PLC0415 - see Exporter

        rollouts = self._app.deployed.rollouts
        if rollouts is None:
            return
        course = rollouts.last
        numbers = {
            "lichen_rollout_number": ("The last rollout", course.number),
            "lichen_rollout_serial": ("The last decision on what devices run", course.serial),
            "lichen_rollout_open": ("Whether one goes on or is paused", course.open is not None),
            "lichen_rollout_paused": ("Whether one is paused", course.phase is Phase.PAUSED),
            "lichen_rollout_waiting": ("Whether a version waits for its turn", course.waiting is not None),
            "lichen_rollout_versions_failed": ("Versions that failed", len(course.failed)),
        }
        for name, (words, value) in numbers.items():
            yield GaugeMetricFamily(name, words, value=float(value))
        if course.rollout is None:
            return
        yield GaugeMetricFamily(
            "lichen_rollout_stage", "Its stage; 0 is the canary's", value=float(course.rollout.stage)
        )
        words = "Its devices by what they say of the version"
        family = GaugeMetricFamily("lichen_rollout_devices", words, labels=["phase"])
        for phase in get_args(Member.model_fields["phase"].annotation):
            count = sum(one.phase == phase for one in course.rollout.members.values())
            family.add_metric([phase], float(count))
        yield family

    def _coverage(self) -> Any:
        from prometheus_client.core import GaugeMetricFamily  # noqa: PLC0415 - see Exporter

        task, labelled = self._app.driver.task, self._app.driver.terms().needs_labels
        labels = task.labels if labelled else (ANY,)
        family = GaugeMetricFamily(
            "lichen_coverage", "Online devices with data", labels=["modality", "label"]
        )
        table = self._app.roster.coverage(task.modality_names, len(labels), labelled=labelled)
        for name, per_class in table.items():
            for label, devices in zip(labels, per_class, strict=True):
                family.add_metric([name, label], float(devices))
        return family
