"""The broker: who gets a message, in which form, and what is queued for them. No I/O.

broker                publish and subscribe: ties together what follows
directory             which groups there are, found through the index
matches               a tag list and what it matched, cached; the recipients
validation            checking a batch's tag lists before anything is stored
fanout                delivering a batch to its recipients
named_subscriptions   subscriptions with a name of their own; queue groups
attribute_index       finding recipients by user, group, site or client (targeted delivery)
outbox, backlog       one peer's send queue, bounded
usage, meters         usage accounting; latencies and rates, by samples
"""
