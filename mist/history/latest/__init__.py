"""Latest values: the newest message of each tag with a prefix, among those that a reader wants.

    index       keeps the tables up with the log, and answers
    tables      what is kept: the newest message of each key and kind; `files`
    entries     what a block adds to that, and what retention and erasure take away
    pages       which messages a reader gets
    query       patterns of tags; one reader's query

They are served by an index, since the log alone would have to be read from its end to its
beginning before the first of them could be sent: with a million messages, that takes seconds. The
index isn't part of an append. It follows the log: up to which id it goes is stored with it, and
what is behind that is read when somebody asks, or when there is time. So it costs a publisher
nothing, and a crash of the server leaves it a little behind.

What is removed from the log is noted there, in the same transaction, until the index has forgotten
it, too: see `BlockStore.removals`.
"""

from mist.history.latest.query import LatestQuery, covers

__all__ = ["LatestQuery", "covers"]
