"""The coordinator's tables (SQLAlchemy core), on SQLite or PostgreSQL."""

from typing import Any

from sqlalchemy import JSON, BigInteger, Column, Dialect, Float, Identity, Integer, MetaData, Table
from sqlalchemy import String as Varchar
from sqlalchemy.types import TypeDecorator

VERSION = 11
"""Version of the tables, in ``PRAGMA user_version``."""

READABLE_FROM = 6
"""Releases whose tables have this version, or a later one, can use what this one writes. A step that only
adds tables, columns with defaults or keys of JSON values leaves it as it is (``storage.migrations``)."""

UPGRADES = {
    1: (
        "ALTER TABLE updates ADD COLUMN file VARCHAR NOT NULL DEFAULT ''",
        "ALTER TABLE updates ADD COLUMN at INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE events ADD COLUMN crc INTEGER",
    ),
    2: (
        "ALTER TABLE updates ADD COLUMN blobs JSON",
        "ALTER TABLE attempts ADD COLUMN policy VARCHAR NOT NULL DEFAULT ''",
        "ALTER TABLE attempts ADD COLUMN passed JSON NOT NULL DEFAULT '{}'",
    ),
    **dict.fromkeys(range(3, VERSION), ()),
}
"""Statements from that version to the next: changes to existing tables; ``create_all`` makes the missing
ones."""


class String(TypeDecorator[str]):
    """A text that sorts by code point on every engine. PostgreSQL stores no NUL, so no engine does."""

    impl = Varchar
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> Any:
        """The type of an engine; the collation of a database must not decide about an order."""
        collation = "C" if dialect.name == "postgresql" else None
        return dialect.type_descriptor(Varchar(collation=collation))

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """The text that is stored."""
        del dialect
        return (
            value if value is None or "\0" not in value else value.replace("\0", "\N{REPLACEMENT CHARACTER}")
        )


BigInt = BigInteger().with_variant(Integer, "sqlite")
"""64 bits on every engine."""
metadata = MetaData()

meta = Table(
    "meta",
    metadata,
    Column("key", String, primary_key=True),
    Column("value", String, nullable=False),
)
"""``task`` (JSON) and ``fleet`` it belongs to; ``bytes_up``, ``bytes_down``; ``why``, ``why_wall``
and ``rounds_now``: the same moment by the clock and on the line that the rounds' times are on."""

events = Table(
    "events",
    metadata,
    Column("seq", BigInt, Identity(), primary_key=True),
    Column("now", Float, nullable=False),
    Column("event", JSON, nullable=False),
    Column("crc", BigInt),
)
"""The round machine's journal: replay from the last checkpoint gives its state. ``crc`` is a CRC-32."""

updates = Table(
    "updates",
    metadata,
    Column("round", Integer, primary_key=True),
    Column("device", String, primary_key=True),
    Column("digest", String, nullable=False, index=True),
    Column("size", BigInt, nullable=False),
    Column("wall", Float, nullable=False),
    Column("header", JSON, nullable=False),
    Column("lost", String, nullable=False, default=""),
    Column("file", String, nullable=False, default=""),
    Column("at", BigInt, nullable=False, default=0),
    Column("blobs", JSON(none_as_null=True)),
)
"""Accepted updates. The frame is in ``updates/<round>/<digest>``, or where ``file`` is set, in that file of
the folder from byte ``at``. ``lost``: why it was not folded. ``blobs``: names of the blobs that it changes;
NULL in rows that are older than the column."""

withdrawn = Table(
    "withdrawn",
    metadata,
    Column("device", String, primary_key=True),
    Column("digest", String, primary_key=True),
    Column("round", Integer, nullable=False),
    Column("reason", String, nullable=False),
    Column("detail", String, nullable=False),
    Column("wall", Float, nullable=False),
)
"""Updates that were accepted and refused afterwards, until their device has confirmed the refusal."""

messages = Table(
    "messages",
    metadata,
    Column("device", String, primary_key=True),
    Column("round", Integer, nullable=False),
    Column("extra", JSON, nullable=False),
)
"""The method's own message of each device's last accepted update; kept where a method is ``routed``."""

refusals = Table(
    "refusals",
    metadata,
    Column("device", String, primary_key=True),
    Column("reason", String, primary_key=True),
    Column("count", BigInt, nullable=False),
    Column("last_detail", String, nullable=False),
    Column("last_wall", Float, nullable=False),
)

devices = Table(
    "devices",
    metadata,
    Column("device", String, primary_key=True),
    Column("state", JSON, nullable=False),
    Column("wall", Float, nullable=False),
)

device_metrics = Table(
    "device_metrics",
    metadata,
    Column("round", Integer, primary_key=True),
    Column("device", String, primary_key=True),
    Column("metrics", JSON, nullable=False),
)

telemetry = Table(
    "telemetry",
    metadata,
    Column("device", String, primary_key=True),
    Column("wall", Float, nullable=False),
    Column("report", JSON, nullable=False),
)
"""The newest metrics that each device reported about itself, by name (``telemetry.history.flat``)."""

telemetry_history = Table(
    "telemetry_history",
    metadata,
    Column("device", String, primary_key=True),
    Column("history", JSON, nullable=False),
)
"""The same over time, thinned: ``step_s``, and ``columns`` with ``at`` (Unix seconds) and one for each
metric (``telemetry.history``)."""

evaluations = Table(
    "evaluations",
    metadata,
    Column("version", Integer, primary_key=True),
    Column("device", String, primary_key=True),
    Column("wall", Float, nullable=False),
    Column("report", JSON, nullable=False),
)
"""Each device's evaluation of some versions on its own held-back windows
(``protocol.tasks.evaluation.DeviceEvaluation``)."""

evaluation_sums = Table(
    "evaluation_sums",
    metadata,
    Column("version", Integer, primary_key=True),
    Column("devices", Integer, nullable=False),
    Column("wall", Float, nullable=False),
    Column("sums", JSON, nullable=False),
)
"""The same, summed over the devices (``evaluations.sums.VersionSums``); changed with each row."""

standing = Table(
    "standing", metadata, Column("device", String, primary_key=True), Column("record", String, nullable=False)
)
"""Offences of devices (``coordinator.admission.quarantine.OffenceRecord`` as JSON)."""

attempts = Table(
    "attempts",
    metadata,
    Column("round", Integer, primary_key=True),
    Column("attempt", Integer, primary_key=True),
    Column("opened_wall", Float, nullable=False),
    Column("closed_wall", Float),
    Column("selected", JSON, nullable=False),
    Column("why", JSON, nullable=False),
    Column("outcome", String, nullable=False, default=""),
    Column("policy", String, nullable=False, default=""),
    Column("passed", JSON, nullable=False, default=dict),
)
"""Every opening of a round: which devices were selected and why, by which policy, the next candidates and why
not they, and how it ended."""

versions = Table(
    "versions",
    metadata,
    Column("version", Integer, primary_key=True),
    Column("manifest", String, nullable=False),
    Column("parent", String),
    Column("wall", Float, nullable=False),
    Column("devices", JSON, nullable=False),
    Column("metrics", JSON, nullable=False),
    Column("confusion", JSON(none_as_null=True)),
    Column("bytes_up", BigInt, nullable=False),
    Column("bytes_down", BigInt, nullable=False),
    Column("trouble", String, nullable=False, default=""),
)
"""The model registry: content-addressed versions, their parent, their contributors, their metrics."""

parts = Table(
    "parts", metadata, Column("version", Integer, primary_key=True), Column("by", JSON, nullable=False)
)
"""Metrics of a version on parts of the windows (``models.training.evaluation.PARTS``)."""

weighings = Table(
    "weighings",
    metadata,
    Column("round", Integer, primary_key=True),
    Column("weights", JSON, nullable=False),
    Column("similarity", JSON, nullable=False),
    Column("warnings", JSON, nullable=False),
    Column("metrics", JSON, nullable=False),
)
"""Device weights of a guided round (``aggregation.device_weights``), and metrics of the coordinator's own
training; written with the version."""

privacy = Table(
    "privacy", metadata, Column("version", Integer, primary_key=True), Column("account", JSON, nullable=False)
)
"""The account of central privacy of each version (``models.privacy.central_account``)."""

secure_rounds = Table(
    "secure_rounds", metadata, Column("round", Integer, primary_key=True),
    Column("attempt", Integer, primary_key=True), Column("wall", Float, nullable=False),
    Column("report", JSON, nullable=False),
)  # fmt: skip
"""How each attempt of a secure round stands at the end of its last stage (``secure_aggregation.report``)."""

exports = Table(
    "exports",
    metadata,
    Column("version", Integer, primary_key=True),
    Column("wall", Float, nullable=False),
    Column("digest", String, nullable=False),
    Column("size", BigInt, nullable=False),
    Column("metrics", JSON, nullable=False),
)

bundles = Table(
    "bundles",
    metadata,
    Column("route", String, primary_key=True),
    Column("blobs", JSON, nullable=False),
    Column("modalities", JSON, nullable=False),
    Column("targets", JSON, nullable=False),
    Column("devices", Integer, nullable=False),
    Column("version", Integer, nullable=False),
    Column("base", String, nullable=False),
    Column("wall", Float, nullable=False),
    Column("digest", String, nullable=False),
    Column("size", BigInt, nullable=False),
    Column("metrics", JSON, nullable=False),
)
"""Where a method is ``routed``: the newest bundle of each serving route, and how many devices it was made
for. ``route``: digest of ``blobs``, the names of what it holds; ``base``: the version's manifest."""

leases = Table(
    "leases",
    metadata,
    Column("role", String, primary_key=True),
    Column("holder", String, nullable=False),
    Column("epoch", Integer, nullable=False),
    Column("until", Float, nullable=False),
)
"""Which process has a role that only one may have (``lease.decisions``). ``until``: Unix seconds of the
database's clock."""

intake = Table(
    "intake",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("round", Integer, nullable=False),
    Column("manifest", String, nullable=False),
    Column("taking", Integer, nullable=False),
)
"""What processes that accept updates may accept: one row (``id`` 1), written by the leader with the event
that changes it."""

arrivals = Table(
    "arrivals",
    metadata,
    Column("round", Integer, primary_key=True),
    Column("device", String, primary_key=True),
    Column("reason", String, primary_key=True),
)
"""What other processes did with updates, until the leader's round machine knows it: ``reason`` is empty for
an accepted update, else why its content was refused."""
