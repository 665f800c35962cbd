"""Which texts are paths on this machine."""

from pathlib import Path

import pytest

from mist.config.paths import parse_path


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("archive", "archive"),
        ("/srv/archive", "/srv/archive"),
        ("a:b", "a:b"),
        ("a:b/c", "a:b/c"),
        ("a:/b", "a:/b"),
        ("./s3a://x", "./s3a:/x"),
        ("1://x", "1:/x"),
        ("file", "file"),
        ("file:a", "file:a"),
        ("file:///srv/archive", "/srv/archive"),
        ("FILE:///srv/archive", "/srv/archive"),
        ("file://localhost/srv/archive", "/srv/archive"),
        ("file:/srv/archive", "/srv/archive"),
        ("file:///srv/a%20b%c3%a9", "/srv/a b\u00e9"),
        ("file:///srv/%ff", "/srv/\udcff"),
        ("/srv/a%20b", "/srv/a%20b"),
    ],
)
def test_a_path_is_read(text: str, path: str) -> None:
    assert parse_path(text) == Path(path)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "it is empty"),
        ("a\0b", ""),
        ("file:///a%00b", ""),
        ("\ud800", ""),
        ("s3a://bucket/x", "s3a:// is not supported"),
        ("S3://key:secret@bucket/x", "S3:// is not supported"),
        ("hdfs://name:8020/x", "hdfs:// is not supported"),
        ("abfss://c@account.dfs.core.windows.net/x", "abfss:// is not supported"),
        ("http://127.0.0.1:8080", "http:// is not supported"),
        ("s3a://bucket/x\n", "s3a:// is not supported"),
        ("file://other/srv", "file:// names another machine"),
        ("file://", "file:// needs three slashes and a path"),
        ("file://archive", "file:// needs three slashes and a path"),
    ],
)
def test_what_is_no_path_is_refused(text: str, reason: str) -> None:
    with pytest.raises(ValueError) as caught:  # the reason is compared
        parse_path(text)
    assert str(caught.value) == reason
