"""Streams of bytes, and who may open one: what carries sessions to their peers.

One module a kind of listener (`tcp`, `websocket`), each with a `handle(stream, nursery)` that
serves one connection; beneath them what they share: `connection` joins a stream and an outbox,
`gate` counts who connects, `handshake` judges a WebSocket request, `streams` makes a fresh
stream ready.
"""
