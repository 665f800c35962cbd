import pytest

from mist.auth.opening import open_registry


@pytest.fixture(params=["memory", "sqlite"])
def url(request, tmp_path):
    """A registry's URL, for each member of the family."""
    return "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/tokens.db"


@pytest.fixture
async def registry(url):
    async with await open_registry(url) as registry:
        yield registry


@pytest.fixture
def seen(registry):
    """What the registry announces."""
    seen = []
    registry.watch(lambda old, new: seen.append((old, new)))
    return seen
