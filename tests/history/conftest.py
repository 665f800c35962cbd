import pytest

from mist.history.opening import open_history


@pytest.fixture(params=["memory", "sqlite"])
def url(request, tmp_path):
    """A log's URL, for each member of the family."""
    return "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/history.db"


@pytest.fixture
async def history(url):
    async with await open_history(url) as history:
        yield history
