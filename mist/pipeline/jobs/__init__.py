"""The jobs over an archive: each a module with a `run`, for commands, tests and the bench.

compact         few large segments of many small ones
match           which messages would each subscription have got?
volume          messages by hour and tag
tags            the tags used most
cooccurrence    which tags travel together
coverage        who hears nothing, and what nobody listens to
billing, drops  deliveries by token and day
tokens          grants never used, subscriptions near the edge of theirs
export          a selection, for others to read
replay          a selection, published again
erase           what must not be there any more
retain          days that are let go
stream          from a live server into a lake
"""
