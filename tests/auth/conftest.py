import secrets

import pytest

from mist.auth.opening import open_registry
from mist.engine.tokens import open_tokens
from tests.engine.conftest import KINDS, realm_url


def url_of(kind, folder):
    if kind == "shared":
        return f"memory://{secrets.token_hex(4)}"
    return "memory://" if kind == "memory" else f"sqlite:///{folder}/tokens.db"


@pytest.fixture(params=["memory", "sqlite"])
def url(request, tmp_path):
    """A registry's URL, for each member of the family that one server has for itself."""
    return url_of(request.param, tmp_path)


@pytest.fixture
async def local(url):
    """A registry that one server has for itself."""
    async with await open_registry(url) as registry:
        yield registry


@pytest.fixture(params=["memory", "sqlite", "shared"])
async def registry(request, tmp_path):
    """A registry, for each member of the family."""
    async with await open_tokens(url_of(request.param, tmp_path)) as registry:
        yield registry


@pytest.fixture
def seen(registry):
    """What the registry announces."""
    seen = []
    registry.watch(lambda old, new: seen.append((old, new)))
    return seen


@pytest.fixture(params=KINDS)
def shared_url(request, redis_servers, postgres_servers):
    """The URL of a store that servers share, for each member of the family."""
    return realm_url(request.param, secrets.token_hex(4), redis_servers, postgres_servers)
