"""Streams of bytes: listeners of each kind, and what joins sessions to their peers.

One module a kind of listener (`tcp`, `nats`, `websocket`), each a `transport` whose `handle`
serves one connection; beneath them what they share: `connection` joins a stream and an outbox,
`connection_limiter` limits connections, `dialects` tells lines from JSON, `http1` reads requests
and writes responses, `handshake` reads those that ask for a WebSocket, and `admission` judges them,
`graceful_shutdown` ends the sessions of a server that goes away, `streams` makes a fresh stream
ready.
"""
