"""The tables of a realm: made where they are missing, and left alone where they are of others.

    head        one row: where the log stands. Its lock is the order in which nodes append
    segment     the first offset of each segment of the log
    record_N    a segment: the records from offset N on
    node        each node's last serial, and the place it was given
    staged      parts of batches, which expire
    once        values for one node to take, which expire
    ancestor    the epochs that the log was in before
    vote        what the members have of the log, while it is confirmed that it is still the same
    token_head, token, token_change     see `tokens`
    member, lease, question, answer     see `members`

A segment is a table of its own, so that trimming is dropping tables, and costs the same for a
hundred records as for a hundred thousand. Not a partition of one table: to drop one of those locks
the whole of it, behind whatever reads it, such as a backup; and every node that appends waits
behind that.

Names that nodes choose are bytes, so that the encoding of the database does not matter.
"""

import hashlib
from typing import Final

from mist.engine.postgres.epoch_functions import EPOCH_FUNCTIONS
from mist.engine.postgres.location import Location
from mist.engine.postgres.log_functions import LOG_FUNCTIONS
from mist.engine.postgres.members import MEMBER_FUNCTIONS
from mist.engine.postgres.token_functions import TOKEN_FUNCTIONS

__all__ = ["FIND_MISSING", "FORMAT", "FUNCTIONS", "make_script", "quoted"]

FORMAT: Final = 1
"""Of the tables and the records; a realm of another one is left alone."""

FUNCTIONS: Final = (*LOG_FUNCTIONS, *EPOCH_FUNCTIONS, *MEMBER_FUNCTIONS, *TOKEN_FUNCTIONS)

_TABLES: Final = """
CREATE TABLE {schema}.head (
  one boolean PRIMARY KEY DEFAULT true CHECK (one),
  format bigint NOT NULL,
  epoch text NOT NULL DEFAULT '',  -- empty until a node has entered
  run text NOT NULL DEFAULT '',  -- the process that is confirmed to have the log
  newest bigint NOT NULL DEFAULT 0,
  "offset" bigint NOT NULL DEFAULT 0,
  time bigint NOT NULL DEFAULT 0,
  trimmed bigint NOT NULL DEFAULT 0,
  segment bigint NOT NULL DEFAULT 1,  -- the one that is written
  filled bigint NOT NULL DEFAULT 0,  -- bytes of bodies in it
  appended bigint NOT NULL DEFAULT 0,  -- bytes of all bodies
  checkpoint text NOT NULL DEFAULT '',  -- the last one
  checkpoint_offset bigint NOT NULL DEFAULT -1
) WITH (fillfactor = 10);  -- so that the next version of the row has room on its page
CREATE TABLE {schema}.segment (first bigint PRIMARY KEY);
CREATE TABLE {schema}.record (  -- empty: what segments are like
  "offset" bigint PRIMARY KEY,
  first bigint NOT NULL,
  count bigint NOT NULL,
  time bigint NOT NULL,
  previous bigint NOT NULL,  -- time of the record before
  tokens bigint NOT NULL,  -- version of the token registry
  serial bigint NOT NULL,
  node bytea NOT NULL,
  body bytea NOT NULL
);
-- Blocks are compressed already, or small.
ALTER TABLE {schema}.record ALTER COLUMN body SET STORAGE EXTERNAL;
CREATE TABLE {schema}.record_1 (LIKE {schema}.record INCLUDING ALL);
INSERT INTO {schema}.segment VALUES (1);
CREATE TABLE {schema}.node (
  name bytea PRIMARY KEY,
  serial bigint NOT NULL DEFAULT 0,
  "offset" bigint NOT NULL DEFAULT 0,
  first bigint NOT NULL DEFAULT 0,
  time bigint NOT NULL  -- of its last record; before that, when it has entered
) WITH (fillfactor = 50);
CREATE TABLE {schema}.staged (
  batch bytea NOT NULL,
  part bigint NOT NULL,
  expires timestamptz NOT NULL,
  body bytea NOT NULL,
  PRIMARY KEY (batch, part)
);
ALTER TABLE {schema}.staged ALTER COLUMN body SET STORAGE EXTERNAL;
CREATE INDEX ON {schema}.staged (expires);
CREATE TABLE {schema}.token_head (
  one boolean PRIMARY KEY DEFAULT true CHECK (one),
  fingerprint bytea NOT NULL,
  version bigint NOT NULL,
  write text NOT NULL,
  changes bigint NOT NULL
) WITH (fillfactor = 10);
CREATE TABLE {schema}.token (digest bytea PRIMARY KEY, value bytea NOT NULL);
CREATE TABLE {schema}.token_change (
  version bigint PRIMARY KEY,
  write text NOT NULL,
  changes bigint NOT NULL,  -- of tokens, up to this one
  digests bytea[] NOT NULL,
  changed bytea[] NOT NULL  -- to these values; NULL where a token is removed
);
CREATE TABLE {schema}.ancestor (
  number bigint PRIMARY KEY,
  epoch text NOT NULL,
  "offset" bigint NOT NULL,
  newest bigint NOT NULL
);
CREATE TABLE {schema}.vote (
  node bytea PRIMARY KEY,
  run text NOT NULL,
  since bigint NOT NULL,
  place bigint,  -- this and what follows once it has voted
  time bigint,
  newest bigint,
  epoch text
);
CREATE TABLE {schema}.member (
  name bytea PRIMARY KEY,
  beat bigint NOT NULL,
  state bytea NOT NULL
) WITH (fillfactor = 50);
CREATE UNLOGGED TABLE {schema}.once (
  name bytea PRIMARY KEY,
  expires timestamptz NOT NULL,
  value bytea NOT NULL
);
CREATE INDEX ON {schema}.once (expires);
CREATE UNLOGGED TABLE {schema}.lease (
  name bytea PRIMARY KEY,
  fence bigint NOT NULL,
  ends bigint NOT NULL,
  holder bytea NOT NULL
);
CREATE UNLOGGED TABLE {schema}.question (
  number bigint PRIMARY KEY,
  asked bigint NOT NULL,
  body bytea NOT NULL
);
CREATE UNLOGGED TABLE {schema}.answer (
  number bigint NOT NULL,
  node bytea NOT NULL,
  body bytea NOT NULL,
  PRIMARY KEY (number, node)
);
INSERT INTO {schema}.head (format) VALUES ({format});
"""

_MAKE: Final = """
SELECT pg_advisory_xact_lock({lock});
DO $make$
BEGIN
  IF to_regnamespace({schema_text}) IS NULL THEN
    CREATE SCHEMA {schema};
  END IF;
  IF to_regclass({head_text}) IS NULL THEN
    {tables}
  END IF;
  {functions}
END
$make$;
"""

_MAKE_FUNCTION: Final = """
  IF NOT EXISTS (SELECT FROM pg_proc
      WHERE pronamespace = to_regnamespace({schema_text}) AND proname = '{name}') THEN
    {source};
  END IF;
"""

FIND_MISSING: Final = """
SELECT to_regclass($1) IS NOT NULL, (
  SELECT count(*) FROM pg_proc
    WHERE pronamespace = to_regnamespace($2) AND proname = ANY (string_to_array($3, ' '))
)
"""
"""Whether there is a table $1, and how many of the functions $3 there are in the schema $2."""


def quoted(schema: str) -> str:
    """A schema as an identifier; its name has no quotes."""
    return f'"{schema}"'


def make_script(location: Location) -> str:
    """Statements that make what is missing, one server at a time."""
    schema = location.schema
    identifier = quoted(schema)
    tables = _TABLES.format(schema=identifier, format=FORMAT)
    functions = [
        _MAKE_FUNCTION.format(
            schema_text=f"'{identifier}'",
            name=each.name,
            source=_placed(each.source, location),
        )
        for each in FUNCTIONS
    ]
    return _MAKE.format(
        lock=_lock(schema),
        schema=identifier,
        schema_text=f"'{identifier}'",
        head_text=f"'{identifier}.head'",
        tables=tables,
        functions="".join(functions),
    )


def _placed(statement: str, location: Location) -> str:
    statement = statement.replace("{schema}", quoted(location.schema))
    statement = statement.replace("{channel}", location.schema)
    return statement.replace("{token_channel}", location.token_channel)


def _lock(schema: str) -> int:
    """The number of an advisory lock that programs of other kinds hardly take."""
    digest = hashlib.sha256(b"mist\0" + schema.encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)
