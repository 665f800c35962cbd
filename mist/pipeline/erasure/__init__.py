"""Erasure: deleting messages from everything that holds them.

    rows        which rows are to go: of messages, of accounts, of exports
    hot         the log that a server appends to
    tables      the archive: segments written anew, old ones removed at once
    lakes       what a running stream has read and not entered yet
    copies      exports that the archive knows of, and its lakes

`mist.pipeline.jobs.erase` does all of it in the order in which nothing can slip through.
"""
