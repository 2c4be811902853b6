"""Tables on PostgreSQL: addresses, what is refused in words, migrations, and sessions that are lost."""

from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

import pytest
import sqlalchemy as sa

from coordinator.config.coordinator import CoordinatorSettings, load_settings
from coordinator.identity import store as identity
from coordinator.rollout.store import ROLLOUTS
from coordinator.storage import schema
from coordinator.storage.database import Database
from coordinator.storage.engines import postgres, postgres_address, shared_postgres
from coordinator.storage.engines.postgres_address import PostgresSchema, address_of, schema_name
from coordinator.storage.location import Location
from protocol.errors import LichenError, Misconfigured, Transient
from tests.support.coordinator.fake import settings_for
from tests.support.network.brokers import free_port
from tests.support.storage.postgres import PostgresServer

HIDDEN = "correct-horse"
BEHIND = "UPDATE writers SET seq = seq - 1"
"""As if the last commit was lost."""
_SCHEMAS = count()


@pytest.fixture
def place(postgres_server: PostgresServer) -> PostgresSchema:
    return address_of(postgres_server.url(), f"own_{next(_SCHEMAS)}", 2.0)


def end_sessions(server: PostgresServer, place: PostgresSchema) -> None:
    """As a restart of the server ends them."""
    query = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = "
    server.sql(f"{query}'lichen {place.name}'")


def inside(server: PostgresServer, name: str, *statements: str) -> list[tuple[object, ...]]:
    """The rows of the last statement, run in a schema."""
    return server.sql(f"SET search_path TO {name}", *statements)


def error_of(place: PostgresSchema, *, read_only: bool = False) -> LichenError:
    with pytest.raises(LichenError) as found:
        Database(place, read_only=read_only)
    return found.value


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("no url", "not a URL"),
        (f"mysql://root:{HIDDEN}@host/db", "mysql is not known here"),
        (f"postgresql+psycopg2://root:{HIDDEN}@host/db", "postgresql+psycopg2 is not known here"),
        (f"postgresql://root:{HIDDEN}@host", "the name of the database is missing"),
        (f"postgresql://root:{HIDDEN}@host:port/db", "not a URL"),
    ],
)
def test_a_wrong_address_is_named_without_its_password(tmp_path: Path, url: str, words: str) -> None:
    with pytest.raises(Misconfigured, match=r"^storage\.url: ") as found:
        settings_for(tmp_path, 1, storage={"url": url}).location  # noqa: B018 - it raises
    assert words in str(found.value)
    assert HIDDEN not in str(found.value)


def test_no_message_and_no_repr_has_the_password(tmp_path: Path) -> None:
    url = f"postgresql://lichen:{HIDDEN}@127.0.0.1:{free_port()}/lichen?connect_timeout=2"
    settings = settings_for(tmp_path, 1, storage={"url": url})
    shown = f"{settings!r} {settings.location!r} {settings.location.where} {settings.location.place}"
    assert HIDDEN not in shown + str(error_of(settings.location.schema))
    assert "lichen@127.0.0.1" in settings.location.where


def test_a_wrong_key_beside_the_url_does_not_show_it(tmp_path: Path) -> None:
    file = tmp_path / "coordinator.toml"
    url = f"postgresql://lichen:{HIDDEN}@host/db"
    lines = [
        'fleet = "f"',
        'state_dir = "s"',
        'task = "t"',
        "[storage]",
        f'url = "{url}"',
        'schema_name = "A b"',
    ]
    file.write_text("\n".join(lines))
    with pytest.raises(Misconfigured, match=r"storage\.schema_name") as found:
        load_settings(file)
    assert HIDDEN not in str(found.value)


def test_without_psycopg_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_address.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(Misconfigured, match=r"pip install 'lichen\[postgres\]'"):
        address_of("postgresql://host/db", "s", 2.0)


def test_schemas_of_fleets_are_short_and_different() -> None:
    names = {schema_name("a" * 60 + end) for end in "bcd"} | {schema_name("hall")}
    assert len(names) == 4
    assert max(map(len, names)) <= 40
    assert "lichen_hall" in names


def test_a_server_that_is_not_there_is_waited_for() -> None:
    gone = address_of(f"postgresql://lichen@127.0.0.1:{free_port()}/lichen", "s", 2.0)
    error = error_of(gone)
    assert isinstance(error, Transient)
    assert "cannot be reached" in str(error)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"database": "nowhere"}, 'database "nowhere" does not exist'),
        ({"username": "stranger"}, 'role "stranger" does not exist'),
        ({"username": "guest"}, "GRANT"),
        ({"database": "ascii"}, "encoding SQL_ASCII"),
    ],
)
def test_what_only_the_operator_can_change_is_named(
    postgres_server: PostgresServer, place: PostgresSchema, change: dict[str, str], words: str
) -> None:
    if change.get("username") == "guest":
        postgres_server.sql("DROP ROLE IF EXISTS guest", "CREATE ROLE guest LOGIN")
    if change.get("database") == "ascii":
        postgres_server.sql("CREATE DATABASE ascii ENCODING 'SQL_ASCII' TEMPLATE template0")
    error = error_of(PostgresSchema(place.url.set(**change), place.name, 2.0))
    assert isinstance(error, Misconfigured), error
    assert words in str(error)
    assert str(error).startswith("storage.url: ")


def test_a_server_that_takes_no_changes_is_waited_for(place: PostgresSchema) -> None:
    standby = place.url.update_query_dict({"options": "-cdefault_transaction_read_only=on"})
    error = error_of(PostgresSchema(standby, place.name, 2.0))
    assert isinstance(error, Transient)
    assert "a standby, or read-only" in str(error)


def test_tables_of_others_are_not_touched(postgres_server: PostgresServer, place: PostgresSchema) -> None:
    postgres_server.sql(f"CREATE SCHEMA {place.name}", f"CREATE TABLE {place.name}.versions (mine TEXT)")
    error = error_of(place)
    assert isinstance(error, Misconfigured)
    assert "table versions lacks" in str(error)
    assert inside(postgres_server, place.name, "SELECT mine FROM versions") == []


def test_tables_that_are_not_there_and_those_of_a_newer_release(
    postgres_server: PostgresServer, place: PostgresSchema
) -> None:
    assert "has this coordinator ever run?" in str(error_of(place, read_only=True))
    Database(place).close()
    inside(postgres_server, place.name, "UPDATE table_version SET version = 99, readable_from = 99")
    error = error_of(place)
    assert isinstance(error, Misconfigured)
    assert "written by a newer lichen" in str(error)


def test_one_coordinator_alone_or_several_that_share(
    place: PostgresSchema, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "_RELEASE_S", 0.1)
    with Database(place) as store:
        assert store.is_served()
        with pytest.raises(Misconfigured, match="another coordinator runs on this schema"):
            Database(place)
        with pytest.raises(Misconfigured, match="another coordinator runs on this schema"):
            Database(place, alone=False)
        with Database(place, read_only=True) as reader:
            assert reader.is_served()
    with Database(place, alone=False), Database(place, alone=False):
        pass
    with Database(place, read_only=True) as reader:
        assert reader.is_served() is False


def test_a_start_waits_for_the_lock_of_the_process_before(place: PostgresSchema) -> None:
    before = Database(place)
    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(Database, place)
        with pytest.raises(TimeoutError):
            waits.result(timeout=0.3)
        before.close()
        waits.result(timeout=10).close()


def test_closed_tables_take_no_lock_again(place: PostgresSchema) -> None:
    """A thread that ends late still calls; the next process must not find the lock taken."""
    store = Database(place)
    store.close()
    with pytest.raises(Transient, match="the tables are closed"):
        store.get_meta("task")
    Database(place).close()


def test_a_step_copies_the_tables_before_it(
    postgres_server: PostgresServer, place: PostgresSchema, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Database(place) as store:
        store.put_meta({"task": "before"})
    step = "ALTER TABLE versions ADD COLUMN mood VARCHAR NOT NULL DEFAULT 'good'"
    monkeypatch.setattr(schema, "UPGRADES", {**schema.UPGRADES, schema.VERSION: (step,)})
    old = schema.VERSION
    monkeypatch.setattr(schema, "VERSION", old + 1)
    with Database(place) as store:
        store.put_meta({"task": "after"})
    assert inside(postgres_server, place.name, "SELECT mood FROM versions") == []
    assert inside(postgres_server, f"{place.name}_v{old}", "SELECT value FROM meta") == [("before",)]


def test_a_session_that_ends_between_two_transactions_is_restored(
    postgres_server: PostgresServer, place: PostgresSchema, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "_IDLE_S", 0.0)
    with Database(place) as store:
        store.put_meta({"a": "1"})
        end_sessions(postgres_server, place)
        store.put_meta({"b": "2"})
        assert (store.get_meta("a"), store.get_meta("b")) == ("1", "2")


def test_a_session_that_ends_in_a_transaction_changes_nothing(
    postgres_server: PostgresServer, place: PostgresSchema
) -> None:
    with Database(place) as store:

        def halfway() -> None:
            with store.transaction():
                store.put_meta({"a": "1"})
                end_sessions(postgres_server, place)
                store.put_meta({"b": "2"})

        with pytest.raises(Transient):
            halfway()
        assert store.get_meta("a") is None
        store.put_meta({"b": "2"})
        store.require_there()


@pytest.mark.parametrize("stored", [True, False])
def test_a_commit_whose_answer_is_lost_is_looked_up(
    postgres_server: PostgresServer, place: PostgresSchema, monkeypatch: pytest.MonkeyPatch, *, stored: bool
) -> None:
    with Database(place) as store:
        store.put_meta({"a": "1"})
        real = sa.RootTransaction.commit

        def cut_off(transaction: sa.RootTransaction) -> None:
            monkeypatch.undo()
            if stored:
                real(transaction)
            end_sessions(postgres_server, place)
            transaction.connection.exec_driver_sql("SELECT 1")  # the error of a lost connection

        monkeypatch.setattr(sa.RootTransaction, "commit", cut_off)
        if stored:
            store.put_meta({"a": "2"})
        else:
            with pytest.raises(Transient, match="before the change was stored"):
                store.put_meta({"a": "2"})
        assert store.get_meta("a") == ("2" if stored else "1")
        store.put_meta({"a": "3"})
        store.require_there()


def test_a_database_that_is_elsewhere_ends_the_process(
    postgres_server: PostgresServer, place: PostgresSchema, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a failover that lost acknowledged commits, or a restored backup."""
    monkeypatch.setattr(postgres, "_IDLE_S", 0.0)
    with Database(place) as store:
        store.put_meta({"a": "1"})
        inside(postgres_server, place.name, BEHIND)
        end_sessions(postgres_server, place)
        for _ in range(2):
            with pytest.raises(Transient, match="not where this coordinator left it"):
                store.put_meta({"a": "2"})
        with pytest.raises(Transient, match="must start again"):
            store.require_there()
    with Database(place) as store:
        assert store.get_meta("a") == "1"


def test_shared_tables_go_on_with_a_database_that_is_elsewhere(
    postgres_server: PostgresServer, place: PostgresSchema, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "_IDLE_S", 0.0)
    location = Location(Path("nowhere"), place)
    with identity.IdentityStore(location) as store, identity.IdentityStore(location) as other:
        store.invite("a", 60.0)
        inside(postgres_server, f"{place.name}_identity", BEHIND)
        end_sessions(postgres_server, place.beside("identity"))
        other.approve("b", unknown=True)
        store.refresh()
        assert store.released_at("b") is not None


def test_a_fence_undoes_a_transaction_of_either_kind(place: PostgresSchema) -> None:
    """The tables of the coordinator are found from the transactions of the others, too."""

    def fence(tables: object) -> None:
        query = "SELECT seq FROM events"
        tables.execute(sa.text(query) if isinstance(tables, sa.Connection) else query)
        raise Transient("fenced")

    with Database(place, fence=fence) as store:
        assert store.get_meta("a") is None
        with pytest.raises(Transient, match="fenced"):
            store.put_meta({"a": "1"})
        assert store.get_meta("a") is None
        shared = shared_postgres.SharedPostgres(place, ROLLOUTS, fence=fence)
        with pytest.raises(Transient, match="fenced"), shared.change() as tables:
            tables.execute("INSERT INTO course VALUES (1, ?)", ("{}",))
        assert shared.rows("SELECT * FROM course") == []
        shared.close()


def test_fleets_share_a_database(postgres_server: PostgresServer, tmp_path: Path) -> None:
    for fleet in ("one", "two"):
        given = settings_for(tmp_path, 1, fleet=fleet, storage={"url": postgres_server.url()})
        assert isinstance(given, CoordinatorSettings)
        with given.location.database() as store:
            store.put_meta({"fleet": fleet})
    one = settings_for(tmp_path, 1, fleet="one", storage={"url": postgres_server.url()})
    with one.location.database(read_only=True) as store:
        assert store.get_meta("fleet") == "one"
