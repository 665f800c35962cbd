"""The broker: who gets a message, in which form, and what is queued for them. No I/O.

broker                publish and subscribe; the walk of a publish
subscriptions         who is subscribed to what, and what may be asked about it
groups, directory     all subscribers of one tag set; the groups, found through the index
matches               a tag list and what it matched, cached; its recipients, resolved
interest              whether anybody asks for any of many messages, by hashes of their tags
validation            checking a batch's tag lists before anything is stored
fanout, staying       delivering a batch to its recipients; who of them has left meanwhile
outbox, backlog       one peer's bounded send queue; what a slow consumer costs, and whom
pausing               what an outbox owes while deliveries come from the history
named_subscriptions   subscriptions with a name of their own; queue groups
attribute_index       finding recipients by user, group, site or client: targeted delivery
observer              the contract of who wants to know what became of each message
usage, usage_logs     usage accounting, which is an observer
meters                latencies and rates, by samples
failures              exceptions that cost one delivery or one session, and no other
"""
