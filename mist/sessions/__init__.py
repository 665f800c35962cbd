"""Sessions: one connected peer each, and what all of them share.

session           a peer: its grant, subscriptions, outbox and end
receiving         what arrives of a peer, handled in order and in turns
dispatch          command dispatch: what each command does, and who may send it
publishing        a session with a dialect: publishes and replies
subscriptions     what one session is subscribed to, counted and bounded
recovery          replay from the history, then live, without a gap or a repeat
replayer          what is replayed, in turns, as there is room
sequencer         group commit: stored first, then delivered and settled, in order
submission        what is handed to the sequencer, and how its publisher hears the outcome
delivery          what was stored, published to the broker in the order of ids
slices            blocks of a log as batches to publish
publisher         one session's publishes in flight: backpressure
inside            publishing from inside the process: by a program, and by HTTP requests
batching          messages from inside the process, checked, as batches
listing           long lists for a peer, in steps
flush_scheduler   when outboxes are flushed, and whose turn it is
client_ids        which client ids are taken
client_filters    predicates that keep messages of channels from clients
local             a subscription inside this process
hub               what all sessions share: broker, tokens, session table, history
session_table     which sessions there are, pending and attached, and which a token has
close_reason      why a session ends
"""
