"""What a history costs and gives: the log by itself, and a server that keeps one.

    appends      durable messages a second of the log alone, beside SQLite's own bare appends
    publishing   publishers to subscribers end to end, with a history and without, in turns
    size         bytes on the disk for a message, beside bare rows in SQLite
    replay       all that is stored to one reader: of the log alone, and over TCP
    search       the first of 1,000 matches among many messages: likewise
    cells        which of these, how large

    stored       what is stored, and a log that holds it
    loops        running beside an event loop that never rests; ending on a signal
    disk         which file system it was

The log alone is measured in this process, beside an event loop that is saturated, since the
server's is just that when it matters, and a thread that writes or reads shares the interpreter
lock with it. End to end is measured from outside, on a server in a process of its own: that
is what a user gets. Whatever comes back is compared with what was stored.

All files are made in a folder and removed with it. What is durable costs what its disk costs,
so the figures name the file system; on `tmpfs` waiting for the disk is free and says nothing.
"""
