"""The report pages: the results of each job as a page.

messages    volume, tags, co-occurrence
matching    match, coverage
accounts    billing, drops, the audit of tokens
about       what every page says of its messages and itself
"""
