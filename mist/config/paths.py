"""Paths as they are written in options: on this machine's file system, or as `file://`.

mist reads and writes files itself, without a file system of Spark's in between. So a URL of an
object store or of HDFS is refused: as a path it would name a local directory `s3a:`, which would
be created and filled without a word.
"""

import os
import re
from pathlib import Path
from typing import Final
from urllib.parse import unquote

__all__ = ["EXPECTED", "parse_path"]

EXPECTED: Final = "a path, or file:///PATH"

# RFC 3986, with an authority: `a:b` is a relative path, as is `a:/b`.
_URL: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)
# RFC 8089 allows one slash, as Java prints it.
_FILE: Final = re.compile(
    r"file:(?://(?P<host>[^/]*)(?=/)|(?!//))(?P<path>/.*)", re.DOTALL | re.IGNORECASE
)
_LOCAL_HOSTS: Final = ("", "localhost")


def parse_path(text: str) -> Path:
    """The path that a text names.

        out/a, /srv/a, a:b    as they are; a relative one is relative to the working directory
        file:///srv/a%20b     /srv/a b; also file:/srv/a and file://localhost/srv/a
        s3a://bucket/a        refused, like every other scheme
        file://other/a        refused, since it is on another machine

    Raises:
        ValueError: it is none; bare where `EXPECTED` says all there is to say.
    """
    if not text:
        raise ValueError("it is empty")
    path = _local(text)
    try:
        usable = b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:
        usable = False
    if not usable:
        raise ValueError
    return Path(path)


def _local(text: str) -> str:
    if file := _FILE.fullmatch(text):
        if (file["host"] or "").lower() not in _LOCAL_HOSTS:
            raise ValueError("file:// names another machine")
        return unquote(file["path"], errors="surrogateescape")
    if url := _URL.fullmatch(text):
        if url[1].lower() == "file":
            raise ValueError("file:// needs three slashes and a path")
        # Only the scheme: the rest may hold a key of the store.
        raise ValueError(f"{url[1]}:// is not supported")
    return text
