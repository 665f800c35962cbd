"""The callout: another server is asked what a credential grants, or whether a subscription is
allowed.

    questions   a POST, bounded in time, size and number; each asked once for all who wait
    backend     the server that is asked, over HTTP
    logins      `--auth-url`: one of the authorities of `mist.auth.credentials`

It fails closed: what is no clear yes lets nobody in. Needs httpcore and httpx, of the
extra `jwt`, so it is imported only where it is configured.
"""
