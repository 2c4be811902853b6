"""A session on PostgreSQL whose process is stopped at a bad moment."""

import time

import psycopg

from tests.support.storage.postgres import PostgresServer


class HungSession:
    """In a transaction, with its locks. Close it at the end.

    Args:
        server: it is on.
        schema: of the tables.
        query: takes the locks.
        name: of the application; empty: that of a coordinator's sessions.
        half: it has sent one half of a further statement: PostgreSQL's limit for idle transactions does not
            end it.
    """

    def __init__(
        self, server: PostgresServer, schema: str, query: str, *, name: str = "", half: bool = True
    ) -> None:
        self._server = server
        self._raw = psycopg.connect(
            server.plain(),
            application_name=name or f"lichen {schema}",
            options=f"-c search_path={schema} -c lock_timeout=10s",
        )
        self._raw.execute(query)
        self._pid = self._raw.info.backend_pid
        if half:
            self._raw.pgconn.enter_pipeline_mode()
            self._raw.pgconn.send_prepare(b"", b"SELECT 1")
            self._raw.pgconn.flush()
            while (self._pid, "active", "ClientRead") not in self._sessions():
                time.sleep(0.01)

    def _sessions(self) -> list[tuple[object, ...]]:
        return self._server.sql("SELECT pid, state, wait_event FROM pg_stat_activity")

    def lives(self) -> bool:
        """Whether the server has not ended it."""
        return self._pid in {pid for pid, *_ in self._sessions()}

    def close(self) -> None:
        """End it."""
        self._raw.close()
