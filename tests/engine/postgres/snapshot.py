"""A realm's log as it was: what a standby has that is behind."""

from tests.engine.postgres_server import PostgresServer

_TABLES = ("head", "ancestor", "node", "record_1")


class Snapshot:
    """The tables of a log as they are when this is made.

    Args:
        schema: a quoted identifier.
    """

    def __init__(self, postgres: PostgresServer, schema: str) -> None:
        self._postgres = postgres
        self._schema = schema
        for table in _TABLES:
            postgres.ask(f"CREATE TABLE {schema}.kept_{table} AS SELECT * FROM {schema}.{table}")

    def restore(self) -> None:
        """Have them be so again."""
        with self._postgres.connect() as connection, connection.transaction():
            for table in _TABLES:
                table = f"{self._schema}.{table}"
                kept = table.replace(".", ".kept_")
                connection.execute(f"TRUNCATE {table}".encode())
                connection.execute(f"INSERT INTO {table} SELECT * FROM {kept}".encode())
