"""`postgresql://`: the log of a realm as tables in PostgreSQL, from version 13 on.

    location       what a URL says
    connection     libpq on trio, with a deadline on every wait
    errors         what the server's errors mean
    pool           connections: reused, opened again with a backoff
    schema         the tables of a realm, and how they are made
    function       what PostgreSQL does in one step: functions, made in the schema
    log_functions, epoch_functions, token_functions
    database       a realm's schema: statements in it, and the making of it
    fence          whether the log is still the one that it was
    members        which nodes are there, leases, questions
    tokens         tokens that servers share
    engine         `PostgresEngine`: the contract over them
    requirements   what a PostgreSQL has to be set to
    opening        looks at that, and makes the engine

A realm is a schema, `mist_REALM`. One row of it, `head`, is locked by each append: so records get
their places in the order in which they are committed. With places from a sequence, a reader may
pass by a record whose transaction ends after that of the next one.

Readers are notified of each append, and look every quarter of a second where that does not come:
behind a connection pooler such as PgBouncer, which may pool by transaction.

libpq is used as it is, without blocking, and not through psycopg's connections, of which none is
for trio: a synchronous one would be used in threads. Then each wait has a thread, which a server
that is stopped keeps until its socket is closed from outside, and each call two switches of
threads.
"""
