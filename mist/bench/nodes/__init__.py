"""Nodes on an engine: what they carry, and how soon they recover.

cells       which engines are measured, and how large
figure      one figure, and what is asked of it
engines     servers of Redis and PostgreSQL that are started here, killed, and started again
redis, postgres     these two
realm       an engine and its nodes
publishing  from a publisher at one node to a subscriber at the other: rates, CPU
steady      an idle node, and latency from one node to the other
revoking    from a revocation at one node to the end of a session at the other
outages     the engine killed, a node killed: until all goes on
joining     a new node, until it is ready

All of an engine's figures are measured on the same two nodes, one after the other: those that
need a node at rest come first, those that leave killed nodes behind come last.
"""
