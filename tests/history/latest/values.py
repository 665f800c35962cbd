"""Latest values as they are defined, and as a log returns them."""

from mist.history import LatestQuery
from mist.history.retention import matches
from mist.history.visibility import may_get
from tests.history.messages import replay


async def newest_of_all(history, selection=None, pattern="k:*", attributes=None):
    """The messages that are the newest of a tag, of all that are selected and may be got."""
    messages = [
        each
        for each in await replay(history, selection)
        if attributes is None or may_get(each.audience, each.tags, attributes)
    ]
    newest = {}
    for each in messages:
        for tag in each.tags:
            if matches(pattern, tag):
                newest[tag] = each
    return sorted(set(newest.values()), key=lambda each: each.id)


async def latest(history, query=None, selection=None, *, after=0, **options):
    """The same, from its index."""
    query = query or LatestQuery("k:*", lambda: None)
    found = []
    while True:
        page = await history.latest(query, selection, after=after, **options)
        found += page.messages()
        if page.complete:
            return found
        assert page.after > after
        after = page.after
