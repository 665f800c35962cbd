"""Streams of bytes, and who may open one: what carries sessions to their peers.

One module a kind of listener (`tcp`, `nats`, `websocket`), each a `transport` whose `handle`
serves one connection; beneath them what they share: `connection` joins a stream and an outbox,
`limiter` counts who connects, `dialects` tells lines from JSON, `handshake` judges a WebSocket
request and `upgrade` has it answered, `departures` takes leave of many, `streams` makes a fresh
stream ready.
"""
