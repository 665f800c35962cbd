"""A fuzz of every protocol: a million inputs for each, over real sockets, to a server of its own.

`mutation` changes bytes; `dialects` makes inputs, valid, nearly valid and broken; `conversations`
has them taken by a server, and counts those that were.
"""
