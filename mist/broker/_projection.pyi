from collections.abc import Sequence
from typing import Any

from mist.index import Index

def project_plain(
    tag_lists: Sequence[bytes], index: Index[Any], most: int
) -> tuple[Sequence[str], Sequence[bytes] | None] | None: ...
