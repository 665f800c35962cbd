"""What PostgreSQL does in one step with the tokens of a realm."""

from typing import Final

from mist.engine.postgres.function import BEGIN_PARAMETERS, Function

__all__ = ["ENTER_TOKENS", "READ_TOKENS", "TOKEN_FUNCTIONS", "WRITE_TOKENS"]

ENTER_TOKENS: Final = Function(
    "enter_tokens",
    f"p_fingerprint bytea, p_write text, {BEGIN_PARAMETERS}, OUT outcome text",
    4,
    """
DECLARE
  first bigint := {NOW} / 1000;
BEGIN
  {BEGIN}
  INSERT INTO {schema}.token_head VALUES (true, p_fingerprint, first, p_write, 0)
    ON CONFLICT DO NOTHING;
  IF FOUND THEN
    IF EXISTS (SELECT FROM {schema}.token) OR EXISTS (SELECT FROM {schema}.token_change) THEN
      RAISE EXCEPTION 'the tokens are damaged: they have no head';
    END IF;
    INSERT INTO {schema}.token_change VALUES (first, p_write, 0, '{}', '{}');
  END IF;
  SELECT CASE WHEN h.fingerprint = p_fingerprint THEN 'entered' ELSE 'key' END INTO outcome
    FROM {schema}.token_head AS h;
END
""",
)

WRITE_TOKENS: Final = Function(
    "write_tokens",
    "p_version bigint, p_after text, p_write text, p_kept bigint, p_digests bytea[], "
    f"p_values bytea[], {BEGIN_PARAMETERS}, OUT outcome text",
    8,
    """
DECLARE
  head {schema}.token_head%ROWTYPE;
BEGIN
  {BEGIN}
  SELECT * INTO head FROM {schema}.token_head FOR NO KEY UPDATE;
  IF NOT FOUND THEN
    outcome := 'gone';
    RETURN;
  END IF;
  IF head.version <> p_version OR head.write <> p_after THEN
    -- It may be this very write, repeated since its reply was lost.
    outcome := CASE WHEN EXISTS (
      SELECT FROM {schema}.token_change AS c WHERE c.version = p_version + 1 AND c.write = p_write
    ) THEN 'written' ELSE 'stale' END;
    RETURN;
  END IF;
  head.changes := head.changes + cardinality(p_digests);
  DELETE FROM {schema}.token AS t USING unnest(p_digests, p_values) AS n (digest, value)
    WHERE t.digest = n.digest AND n.value IS NULL;
  INSERT INTO {schema}.token AS t
    SELECT n.digest, n.value FROM unnest(p_digests, p_values) AS n (digest, value)
      WHERE n.value IS NOT NULL
    ON CONFLICT (digest) DO UPDATE SET value = EXCLUDED.value;
  INSERT INTO {schema}.token_change
    VALUES (p_version + 1, p_write, head.changes, p_digests, p_values);
  UPDATE {schema}.token_head AS h
    SET version = p_version + 1, write = p_write, changes = head.changes;
  -- More than are added, down to those to keep.
  DELETE FROM {schema}.token_change AS c WHERE c.version IN (
    SELECT o.version FROM {schema}.token_change AS o ORDER BY o.version LIMIT 10
  ) AND head.changes - c.changes > p_kept;
  PERFORM pg_notify('{token_channel}', '');
  outcome := 'written';
END
""",
)

READ_TOKENS: Final = Function(
    "read_tokens",
    "p_version bigint, p_after text, p_bytes bigint",
    3,
    """
-- The newest version, or NULL where p_version is not known any more; behind it, what was written.
#variable_conflict use_column
DECLARE
  head {schema}.token_head%ROWTYPE;
BEGIN
  SELECT * INTO head FROM {schema}.token_head;
  outcome := 'found';
  IF head.version IS NULL THEN
    outcome := 'gone';
  ELSIF NOT EXISTS (
    SELECT FROM {schema}.token_change AS c WHERE c.version = p_version AND c.write = p_after
  ) THEN
    outcome := 'forgotten';
  END IF;
  newest := head.version;
  RETURN NEXT;
  IF outcome = 'found' AND p_version < newest THEN
    RETURN QUERY SELECT NULL::text, NULL::bigint, s.version, s.write, s.digests, s.changed FROM (
      SELECT c.*, sum(pg_column_size(c.changed)) OVER (ORDER BY c.version)
        - pg_column_size(c.changed) AS before
      FROM (
        SELECT * FROM {schema}.token_change AS k WHERE k.version > p_version
          ORDER BY k.version LIMIT 1000
      ) AS c
    ) AS s WHERE s.before < p_bytes ORDER BY s.version;
  END IF;
END
""",
    returns="RETURNS TABLE (outcome text, newest bigint, version bigint, write text, "
    "digests bytea[], changed bytea[])",
    volatility="STABLE",
)

TOKEN_FUNCTIONS: Final = (ENTER_TOKENS, WRITE_TOKENS, READ_TOKENS)
