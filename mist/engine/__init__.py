"""Many nodes on one engine: what orders and keeps what all of them publish.

A *node* is a server. The nodes of a *realm* share one log, which an engine keeps, outside of them:
Redis, PostgreSQL; or the process itself, which is for tests.

    publish → node: encode → engine.append, which gives the ids
    engine's log → every node reads all of it → its mirror → its subscribers

The engine orders and keeps; each node mirrors and serves. The mirror is a log as a single server
has it (`mist.history`), and a cache: it may be deleted. All that is read is read from the mirror,
so that a thousand clients that reconnect cost the engine nothing. A node delivers only what the
engine's log brings, what it published itself included. So what comes first for one subscriber comes
first for all, and nobody gets what is not kept.

    node        a server's place at an engine, and its mirror
    follower    applies what comes from the engine to the mirror
    checkpointing  what new nodes begin with, and when the log is trimmed
    eraser      carries out erasures
    contract    `Engine`, its records; errors: what goes wrong
    fence       whether the log is still the one that it was, whichever process has it
    fenced      what engines that may lose records have in common
    members     which nodes are there; leases, questions to all nodes
    beats       a node's heartbeats, and questions from and to the others
    leases      what one node does at a time
    lag         by how much a node is behind
    entries     what a record says: messages, a writer's batch, forgotten keys
    opening     finds the member for a URL
    tokens      finds the member for the URL of a token registry, shared or not
    memory      `memory://`: nodes in one process
    redis/      `redis://`, `redis+sentinel://`, `redis+cluster://`, with TLS `rediss…`
    postgres/   `postgresql://`
"""
