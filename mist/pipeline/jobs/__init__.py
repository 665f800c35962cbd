"""The jobs over an archive: each a module with a `run`, for commands, tests and the bench.

compact         compaction: small segments are merged into large ones
match           matching: messages that each subscription would have received
volume          roll-up of messages by hour and tag
tags            the most frequent tags
cooccurrence    co-occurrence of tags
coverage        subscriptions without messages, unmatched tags, fan-out
billing, drops  deliveries and drops by token and day
tokens          token audit: unused grants, subscriptions that only just match theirs
export          a selection as Parquet, JSON lines or a Delta table
replay          a selection, published again
erase           erasure of messages on request
retain          retention by days
stream          streaming ingestion from a live server into a lake
"""
