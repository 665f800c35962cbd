"""What PostgreSQL does in one step with the log: to put a record at its end, to read, to trim.

Each function that reads or appends looks by itself whether the log is the one that the caller knows
(`_FENCE`): behind a connection pooler, the server may be another one with every call.

A record has the time of the one before it. Times ascend, so that names one record: a log that has
lost some and was continued tells it by the first record behind the gap, however the loss came
about.
"""

from typing import Final

from mist.engine.postgres.function import BEGIN_PARAMETERS, Function

__all__ = ["APPEND", "CHECKPOINT", "DROP", "LOG_FUNCTIONS", "PUT", "READ", "STAGE", "TRIM"]

_SEGMENT_RECORDS: Final = 100_000
_SEGMENT_BYTES: Final = 256 * 1024 * 1024

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

_FENCE_PARAMETERS: Final = "p_epoch text, p_run text, p_seen bigint, p_seen_time bigint"

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
    segment = head.segment, filled = head.filled + octet_length(p_body),
    appended = head.appended + octet_length(p_body);
  PERFORM pg_notify('{channel}', '');
END
""".replace("{SEGMENT_RECORDS}", str(_SEGMENT_RECORDS)).replace(
        "{SEGMENT_BYTES}", str(_SEGMENT_BYTES)
    ),
)

APPEND: Final = Function(
    "append",
    f"{_FENCE_PARAMETERS}, p_node bytea, p_serial bigint, p_count bigint, p_body bytea, "
    f"{BEGIN_PARAMETERS}, "
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
""".replace("{FENCE}", _FENCE),
    uses=(PUT,),
)

CHECKPOINT: Final = Function(
    "checkpoint",
    f"{_FENCE_PARAMETERS}, p_offset bigint, p_checkpoint text, p_seconds bigint, "
    f"{BEGIN_PARAMETERS}, OUT outcome text",
    9,
    """
DECLARE
  head {schema}.head%ROWTYPE;
BEGIN
  {BEGIN}
  SELECT * INTO head FROM {schema}.head FOR NO KEY UPDATE;
  {FENCE}
  IF outcome IS NOT NULL THEN
    RETURN;
  END IF;
  outcome := 'older';
  IF head.checkpoint_offset < p_offset THEN
    UPDATE {schema}.head AS h SET checkpoint = p_checkpoint, checkpoint_offset = p_offset;
    UPDATE {schema}.staged SET expires = 'infinity'
      WHERE batch = convert_to(split_part(p_checkpoint, ' ', 1), 'UTF8');
    UPDATE {schema}.staged SET expires = clock_timestamp() + p_seconds * interval '1 second'
      WHERE batch = convert_to(split_part(head.checkpoint, ' ', 1), 'UTF8');
    outcome := 'made';
  END IF;
END
""".replace("{FENCE}", _FENCE),
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
  r record;
  size bigint := 0;
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
  FOR r IN EXECUTE format(
    'SELECT * FROM {schema}.%I WHERE "offset" > $1 ORDER BY "offset" LIMIT $2',
    'record_' || segment
  ) USING p_after, p_records LOOP
    outcome := NULL;
    "offset" := r."offset";
    first := r.first;
    count := r.count;
    at := r.time;
    previous := r.previous;
    tokens := r.tokens;
    serial := r.serial;
    node := r.node;
    body := r.body;
    RETURN NEXT;
    size := size + octet_length(r.body);
    EXIT WHEN size >= p_bytes;
  END LOOP;
END
""".replace("{FENCE}", _FENCE),
    returns="RETURNS TABLE (outcome text, last bigint, last_time bigint, newest bigint, "
    'trimmed bigint, "offset" bigint, first bigint, count bigint, at bigint, previous bigint, '
    "tokens bigint, serial bigint, node bytea, body bytea)",
    volatility="STABLE",  # all of it as of one moment
)

TRIM: Final = Function(
    "trim",
    f"p_upto bigint, {BEGIN_PARAMETERS}, OUT done boolean",
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
    f"{BEGIN_PARAMETERS}, OUT dropped boolean",
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
    f"p_batch bytea, p_part bigint, p_body bytea, p_seconds bigint, {BEGIN_PARAMETERS}, "
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

LOG_FUNCTIONS: Final = (PUT, APPEND, CHECKPOINT, READ, TRIM, DROP, STAGE)
