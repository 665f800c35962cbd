"""What PostgreSQL does in one step: functions in the schema of the realm.

A function's name ends with a digest of its source, so that nodes of different versions, as there
are in a rolling upgrade, each call what they were written for.

Each looks by itself whether the log is the one that the caller knows (`_FENCE`): behind a
connection pooler, the server may be another one with every call.

A record has the time of the one before it. Times ascend, so that names one record: a log that has
lost some and was continued tells it by the first record behind the gap, however the loss came
about.
"""

import hashlib
from collections.abc import Sequence
from functools import cached_property
from typing import Final

import attrs

__all__ = [
    "APPEND",
    "ASK",
    "CONFIRM",
    "DROP",
    "ENTER",
    "FUNCTIONS",
    "READ",
    "STAGE",
    "TRIM",
    "Function",
    "fill",
]

_SEGMENT_RECORDS: Final = 100_000
_SEGMENT_BYTES: Final = 256 * 1024 * 1024
_ANCESTORS: Final = 20  # epochs
_SCHEMA: Final = "{schema}"


@attrs.frozen
class Function:
    """A function.

    Attributes:
        parameters: as they are declared, input first.
        arguments: number of those that are given to it.
        body: with the names of `_PARTS`, and `{schema}`; and `{OTHER}`, the name of a function.
    """

    kind: str
    parameters: str
    arguments: int
    body: str = attrs.field(repr=False)
    returns: str = ""
    volatility: str = "VOLATILE"

    @cached_property
    def name(self) -> str:
        """Its name in a schema."""
        digest = hashlib.sha256(self._declaration.encode()).hexdigest()
        return f"{self.kind}_{digest[:16]}"

    @property
    def source(self) -> str:
        """The statement that makes it, in `{schema}`."""
        return f"CREATE FUNCTION {_SCHEMA}.{self.name}{self._declaration}"

    @property
    def _declaration(self) -> str:
        body = fill(self.body)
        return (
            f"({self.parameters}) {self.returns} LANGUAGE plpgsql {self.volatility} "
            f"AS $function${body}$function$"
        )

    @cached_property
    def call(self) -> str:
        """The statement that calls it, in `{schema}`."""
        numbers = ", ".join([f"${number}" for number in range(1, self.arguments + 1)])
        return f"SELECT * FROM {_SCHEMA}.{self.name}({numbers})"  # noqa: S608


def fill(statement: str) -> str:
    """A statement in which the names of `_PARTS` are replaced by what they stand for."""
    for name, part in _PARTS.items():
        statement = statement.replace(f"{{{name}}}", part)
    for each in FUNCTIONS:
        mark = f"{{{each.kind.upper()}}}"
        if mark in statement:
            statement = statement.replace(mark, each.name)
    return statement


# Names a process of a server, and the history of its data: those of a standby that becomes the
# primary are others.
_RUN: Final = """(
    (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint || '-'
      || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8)
  )"""

# Microseconds of the server's clock.
_NOW: Final = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"

# Nothing waits at the server for longer than for its caller; and what is written is kept, whatever
# the server, the database or the user has `synchronous_commit` set to.
_BEGIN: Final = """
  PERFORM set_config('lock_timeout', p_wait, true);
  IF p_durable AND current_setting('synchronous_commit') = 'off' THEN
    PERFORM set_config('synchronous_commit', 'on', true);
  END IF;
"""

# Whether this is the log that the node knows, in the process that it knows. The last record that it
# has seen has to be there, as it was.
_FENCE: Final = """
  IF pg_is_in_recovery() THEN
    outcome := 'standby';
  ELSIF head.epoch IS DISTINCT FROM p_epoch THEN
    outcome := 'forked';
  ELSIF {RUN} <> p_run OR head.run <> p_run THEN
    outcome := 'unconfirmed';
  ELSIF head."offset" < p_seen
      OR (head."offset" = p_seen AND p_seen_time <> 0 AND head.time <> p_seen_time) THEN
    outcome := 'forked';
  END IF;
"""

_PARTS: Final = {  # in the order in which they are replaced
    "FENCE": _FENCE,
    "BEGIN": _BEGIN,
    "RUN": _RUN,
    "NOW": _NOW,
    "SEGMENT_RECORDS": str(_SEGMENT_RECORDS),
    "SEGMENT_BYTES": str(_SEGMENT_BYTES),
    "ANCESTORS": str(_ANCESTORS),
}

_FENCE_PARAMETERS: Final = "p_epoch text, p_run text, p_seen bigint, p_seen_time bigint"
_BEGIN_PARAMETERS: Final = "p_durable boolean, p_wait text"

PUT: Final = Function(
    "put",
    "p_count bigint, p_serial bigint, p_node bytea, p_body bytea, "
    "OUT place bigint, OUT first_id bigint, OUT at bigint",
    4,
    """
-- Puts a record at the end of the log. The caller has locked the head.
DECLARE
  head {schema}.head%ROWTYPE;
BEGIN
  SELECT * INTO head FROM {schema}.head;
  place := head."offset" + 1;
  first_id := head.newest + 1;
  at := greatest(head.time + 1, {NOW});
  IF place >= head.segment + {SEGMENT_RECORDS} OR head.filled >= {SEGMENT_BYTES} THEN
    head.segment := place;
    head.filled := 0;
    EXECUTE format(
      'CREATE TABLE {schema}.%I (LIKE {schema}.record INCLUDING ALL)', 'record_' || place
    );
    INSERT INTO {schema}.segment VALUES (place);
  END IF;
  EXECUTE format(
    'INSERT INTO {schema}.%I VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)',
    'record_' || head.segment
  ) USING place, first_id, p_count, at, head.time,
    coalesce((SELECT t.version FROM {schema}.token_head AS t), 0), p_serial, p_node, p_body;
  UPDATE {schema}.head AS h SET newest = head.newest + p_count, "offset" = place, time = at,
    segment = head.segment, filled = head.filled + octet_length(p_body);
  PERFORM pg_notify('{channel}', '');
END
""",
)

FORK: Final = Function(
    "fork",
    "p_from text, p_epoch text, p_above bigint, p_run text, OUT place bigint",
    4,
    """
-- Begins another epoch in a log that has lost records. The ids that may have been given to them are
-- given to nobody again: a record of no body takes them. The caller has locked the head.
DECLARE
  head {schema}.head%ROWTYPE;
  last bigint;
BEGIN
  SELECT * INTO head FROM {schema}.head;
  SELECT coalesce(max(a.number), 0) + 1 INTO last FROM {schema}.ancestor AS a;
  UPDATE {schema}.ancestor AS a SET "offset" = least(a."offset", head."offset"),
    newest = least(a.newest, head.newest);
  INSERT INTO {schema}.ancestor VALUES (last, p_from, head."offset", head.newest);
  DELETE FROM {schema}.ancestor AS a WHERE a.number <= last - {ANCESTORS};
  SELECT p.place INTO place
    FROM {schema}.{PUT}(greatest(p_above - head.newest, 0), 0, '-', '') AS p;
  UPDATE {schema}.head AS h SET epoch = p_epoch, run = p_run;
END
""",
)

HAS: Final = Function(
    "has",
    "p_place bigint, p_time bigint, OUT kept boolean",
    2,
    """
-- Whether the log has a record as a node has it. Of one that was trimmed nothing is known.
DECLARE
  head {schema}.head%ROWTYPE;
  at bigint;
BEGIN
  SELECT * INTO head FROM {schema}.head;
  IF p_place > head."offset" THEN
    kept := false;
  ELSIF p_place <= head.trimmed OR p_time = 0 THEN
    kept := true;
  ELSE
    EXECUTE format(
      'SELECT time FROM {schema}.%I WHERE "offset" = $1',
      'record_' || (SELECT max(s.first) FROM {schema}.segment AS s WHERE s.first <= p_place)
    ) INTO at USING p_place;
    kept := at IS NULL OR at = p_time;
  END IF;
END
""",
)

ENTER: Final = Function(
    "enter",
    "p_node bytea, p_new text, p_nodes bigint, p_epoch text, p_newest bigint, "
    f"{_BEGIN_PARAMETERS}, OUT entered boolean",
    7,
    """
DECLARE
  head {schema}.head%ROWTYPE;
BEGIN
  {BEGIN}
  SELECT * INTO head FROM {schema}.head FOR NO KEY UPDATE;
  IF head.epoch = '' THEN
    UPDATE {schema}.head AS h SET epoch = p_new, run = {RUN};
    IF p_epoch <> '' THEN
      PERFORM {schema}.{FORK}(p_epoch, p_new, p_newest, {RUN});
    END IF;
  END IF;
  INSERT INTO {schema}.node (name, time) VALUES (p_node, {NOW}) ON CONFLICT DO NOTHING;
  -- The longest silent are forgotten.
  DELETE FROM {schema}.node AS n WHERE n.name IN (
    SELECT o.name FROM {schema}.node AS o WHERE o.name <> p_node
      ORDER BY o.time DESC OFFSET p_nodes - 1
  );
  entered := head.epoch IS NOT NULL;
END
""",
)

CONFIRM: Final = Function(
    "confirm",
    "p_node bytea, p_place bigint, p_time bigint, p_newest bigint, p_epoch text, p_new text, "
    f"p_alive bigint, p_votes bigint, {_BEGIN_PARAMETERS}, OUT outcome text, OUT run text",
    10,
    """
-- Confirms that this process has the log. p_place, p_time, p_newest, p_epoch: what the node has of
-- it; p_new: another epoch; p_alive, p_votes: microseconds for which a beat counts, and for which
-- votes are waited for
#variable_conflict use_variable
DECLARE
  head {schema}.head%ROWTYPE;
  now bigint;
  since bigint;
  missing bigint;
  same boolean;
  above bigint;
BEGIN
  IF pg_is_in_recovery() THEN
    outcome := 'standby';
    RETURN;
  END IF;
  {BEGIN}
  run := {RUN};
  SELECT * INTO head FROM {schema}.head FOR NO KEY UPDATE;
  IF head.run = run THEN
    outcome := 'forked';
    IF head.epoch = p_epoch THEN
      IF {schema}.{HAS}(p_place, p_time) THEN
        outcome := 'same';
      ELSE
        PERFORM {schema}.{FORK}(head.epoch, p_new, p_newest, run);
      END IF;
    END IF;
    RETURN;
  END IF;

  -- Another process has the log. All members say what they have of it before anything is appended.
  now := {NOW};
  IF NOT EXISTS (SELECT FROM {schema}.vote AS v WHERE v.run = run) THEN
    DELETE FROM {schema}.vote;
    -- By their last beat: how long the log was away does not matter.
    INSERT INTO {schema}.vote (node, run, since)
      SELECT m.name, run, now FROM {schema}.member AS m
        WHERE m.beat > (SELECT max(l.beat) FROM {schema}.member AS l) - p_alive;
  END IF;
  INSERT INTO {schema}.vote (node, run, since, place, time, newest, epoch)
    VALUES (p_node, run, now, p_place, p_time, p_newest, p_epoch)
    ON CONFLICT (node) DO UPDATE SET place = EXCLUDED.place, time = EXCLUDED.time,
      newest = EXCLUDED.newest, epoch = EXCLUDED.epoch;
  SELECT min(v.since), count(*) FILTER (WHERE v.epoch IS NULL),
      coalesce(
        bool_and({schema}.{HAS}(v.place, v.time)) FILTER (WHERE v.epoch = head.epoch), true
      ),
      greatest(head.newest, max(v.newest) FILTER (WHERE v.epoch = head.epoch))
    INTO since, missing, same, above FROM {schema}.vote AS v;
  IF missing > 0 AND now - since < p_votes THEN
    outcome := 'waiting';
    RETURN;
  END IF;
  DELETE FROM {schema}.vote;
  IF same AND missing = 0 THEN
    UPDATE {schema}.head AS h SET run = run;
    outcome := CASE WHEN head.epoch = p_epoch THEN 'same' ELSE 'forked' END;
  ELSE
    -- What a member that is not there any more had of the log is not known: it may have been more.
    PERFORM {schema}.{FORK}(head.epoch, p_new, above, run);
    outcome := 'forked';
  END IF;
END
""",
)

APPEND: Final = Function(
    "append",
    f"{_FENCE_PARAMETERS}, p_node bytea, p_serial bigint, p_count bigint, p_body bytea, "
    f"{_BEGIN_PARAMETERS}, "
    "OUT outcome text, OUT place bigint, OUT first_id bigint, OUT at bigint",
    10,
    """
DECLARE
  head {schema}.head%ROWTYPE;
  known {schema}.node%ROWTYPE;
BEGIN
  {BEGIN}
  SELECT * INTO head FROM {schema}.head FOR NO KEY UPDATE;
  {FENCE}
  IF outcome IS NOT NULL THEN
    RETURN;
  END IF;
  SELECT * INTO known FROM {schema}.node AS n WHERE n.name = p_node;
  IF NOT FOUND OR p_serial < known.serial THEN
    outcome := 'unknown';
    RETURN;
  END IF;
  outcome := 'placed';
  IF p_serial = known.serial THEN
    place := known."offset";
    first_id := known.first;
    at := known.time;
    RETURN;
  END IF;
  SELECT * INTO place, first_id, at FROM {schema}.{PUT}(p_count, p_serial, p_node, p_body);
  UPDATE {schema}.node AS n SET serial = p_serial, "offset" = place, first = first_id, time = at
    WHERE n.name = p_node;
END
""",
)

READ: Final = Function(
    "read",
    f"{_FENCE_PARAMETERS}, p_after bigint, p_bytes bigint, p_records bigint",
    7,
    """
#variable_conflict use_column
DECLARE
  head {schema}.head%ROWTYPE;
  segment bigint;
BEGIN
  SELECT * INTO head FROM {schema}.head;
  {FENCE}
  IF outcome IS NULL THEN
    outcome := CASE WHEN head."offset" < p_after THEN 'forked'
      WHEN p_after < head.trimmed THEN 'trimmed' ELSE 'found' END;
  END IF;
  last := head."offset";
  last_time := head.time;
  newest := head.newest;
  trimmed := head.trimmed;
  RETURN NEXT;
  IF outcome <> 'found' OR p_after = head."offset" THEN
    RETURN;
  END IF;
  -- The next segment is for the next call.
  SELECT max(s.first) INTO segment FROM {schema}.segment AS s WHERE s.first <= p_after + 1;
  RETURN QUERY EXECUTE format($query$
    SELECT NULL::text, NULL::bigint, NULL::bigint, NULL::bigint, NULL::bigint,
      r."offset", r.first, r.count, r.time, r.previous, r.tokens, r.serial, r.node, r.body
    FROM (
      SELECT s.*, sum(octet_length(s.body)) OVER (ORDER BY s."offset") - octet_length(s.body)
        AS before
      FROM (SELECT * FROM {schema}.%I WHERE "offset" > $1 ORDER BY "offset" LIMIT $2) AS s
    ) AS r WHERE r.before < $3 ORDER BY r."offset"
    $query$, 'record_' || segment) USING p_after, p_records, p_bytes;
END
""",
    returns="RETURNS TABLE (outcome text, last bigint, last_time bigint, newest bigint, "
    'trimmed bigint, "offset" bigint, first bigint, count bigint, at bigint, previous bigint, '
    "tokens bigint, serial bigint, node bytea, body bytea)",
    volatility="STABLE",  # all of it as of one moment
)

TRIM: Final = Function(
    "trim",
    f"p_upto bigint, {_BEGIN_PARAMETERS}, OUT done boolean",
    3,
    """
BEGIN
  {BEGIN}
  UPDATE {schema}.head AS h SET trimmed = least(p_upto, h."offset")
    WHERE h.trimmed < least(p_upto, h."offset");
  done := EXISTS (SELECT FROM {schema}.head);
END
""",
)

# Drops one segment that has nothing but trimmed records, if it isn't read now; the last one stays.
DROP: Final = Function(
    "drop",
    f"{_BEGIN_PARAMETERS}, OUT dropped boolean",
    2,
    """
DECLARE
  oldest bigint;
BEGIN
  {BEGIN}
  SELECT s.first INTO oldest FROM {schema}.segment AS s, {schema}.head AS h
    WHERE EXISTS (
      SELECT FROM {schema}.segment AS n WHERE n.first > s.first AND n.first <= h.trimmed + 1
    ) ORDER BY s.first LIMIT 1 FOR UPDATE OF s SKIP LOCKED;
  dropped := oldest IS NOT NULL;
  IF dropped THEN
    DELETE FROM {schema}.segment AS s WHERE s.first = oldest;
    EXECUTE format('DROP TABLE {schema}.%I', 'record_' || oldest);
  END IF;
END
""",
)

STAGE: Final = Function(
    "stage",
    f"p_batch bytea, p_part bigint, p_body bytea, p_seconds bigint, {_BEGIN_PARAMETERS}, "
    "OUT done boolean",
    6,
    """
BEGIN
  {BEGIN}
  -- More than are added, so that what has expired goes.
  DELETE FROM {schema}.staged WHERE (batch, part) IN (
    SELECT s.batch, s.part FROM {schema}.staged AS s WHERE s.expires < clock_timestamp()
      ORDER BY s.expires LIMIT 4 FOR UPDATE SKIP LOCKED
  );
  INSERT INTO {schema}.staged AS s VALUES
    (p_batch, p_part, clock_timestamp() + p_seconds * interval '1 second', p_body)
    ON CONFLICT (batch, part) DO UPDATE SET expires = EXCLUDED.expires, body = EXCLUDED.body;
  done := true;
END
""",
)

ASK: Final = Function(
    "ask",
    "p_body bytea, p_shared bigint, p_open bigint, p_kept bigint, p_most bigint, OUT asked bigint",
    5,
    """
DECLARE
  now bigint;
BEGIN
  LOCK TABLE {schema}.question IN SHARE ROW EXCLUSIVE MODE;
  now := {NOW};
  DELETE FROM {schema}.question AS q WHERE now >= q.asked + p_open;
  DELETE FROM {schema}.answer AS a WHERE a.number < now - p_kept;
  SELECT max(q.number) INTO asked FROM {schema}.question AS q
    WHERE q.body = p_body AND now < q.asked + p_shared;
  IF asked IS NULL AND (SELECT count(*) FROM {schema}.question) < p_most THEN
    SELECT greatest(now, max(q.number) + 1) INTO asked FROM {schema}.question AS q;
    INSERT INTO {schema}.question VALUES (asked, now, p_body);
  END IF;
END
""",
)

FUNCTIONS: Final[Sequence[Function]] = (
    PUT,
    FORK,
    HAS,
    ENTER,
    CONFIRM,
    APPEND,
    READ,
    TRIM,
    DROP,
    STAGE,
    ASK,
)
