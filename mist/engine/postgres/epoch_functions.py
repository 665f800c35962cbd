"""What PostgreSQL does in one step where a node enters, or another process has the log."""

from typing import Final

from mist.engine.postgres.function import BEGIN_PARAMETERS, Function
from mist.engine.postgres.log_functions import PUT

__all__ = ["CONFIRM", "ENTER", "EPOCH_FUNCTIONS"]

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
  DELETE FROM {schema}.ancestor AS a WHERE a.number <= last - 20;  -- epochs
  SELECT p.place INTO place
    FROM {schema}.{PUT}(greatest(p_above - head.newest, 0), 0, '-', '') AS p;
  UPDATE {schema}.head AS h SET epoch = p_epoch, run = p_run;
END
""",
    uses=(PUT,),
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
    f"{BEGIN_PARAMETERS}, OUT entered boolean",
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
    uses=(FORK,),
)

CONFIRM: Final = Function(
    "confirm",
    "p_node bytea, p_place bigint, p_time bigint, p_newest bigint, p_epoch text, p_new text, "
    f"p_alive bigint, p_votes bigint, {BEGIN_PARAMETERS}, OUT outcome text, OUT run text",
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
  before text[];
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
  -- Of epochs that this one goes on from. Any other is one that the log has lost, with what was in
  -- it: it was begun after the last failover, and has not reached the one that has the log now.
  before := ARRAY(SELECT a.epoch FROM {schema}.ancestor AS a) || ''::text;
  SELECT min(v.since), count(*) FILTER (WHERE v.epoch IS NULL),
      coalesce(
        bool_and(v.epoch = head.epoch AND {schema}.{HAS}(v.place, v.time))
          FILTER (WHERE v.epoch <> ALL (before)),
        true
      ),
      greatest(head.newest, max(v.newest) FILTER (WHERE v.epoch <> ALL (before)))
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
    uses=(FORK, HAS),
)

EPOCH_FUNCTIONS: Final = (FORK, HAS, ENTER, CONFIRM)
