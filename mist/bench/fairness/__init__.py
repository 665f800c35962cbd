"""Fairness: what one peer, within its limits, can do to the latency of all others.

cells      which attacks there are
arena      a server under attack, beside it the probe; quiet and attacked in turns
watched    that server: it notes for how long its event loop was held
probe      the others: a process of its own that publishes and subscribes at a steady rate
peers      the attackers' connections
matching, subscribing, requests, replays, wide     the attacks
unfairness what came of one attack
"""
