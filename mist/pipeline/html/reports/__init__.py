"""Pages of the reports: what each job came to, put so that people want to look at it.

messages    volume, tags, co-occurrence
matching    match, coverage
accounts    billing, drops, the audit of tokens
about       what every page says of its messages and itself
"""
