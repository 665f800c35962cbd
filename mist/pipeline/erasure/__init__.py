"""Taking messages out of everything that holds them.

    rows        which rows are to go: of messages, of accounts, of exports
    hot         the log that a server appends to
    tables      the archive: segments written anew, old ones removed at once
    copies      exports that the archive knows of

`mist.pipeline.jobs.erase` does all of it in the order in which nothing can slip through.
"""
