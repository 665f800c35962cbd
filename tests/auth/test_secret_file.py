"""Files with a secret, and those that are shared with another server."""

import os
from pathlib import Path

import pytest

from mist.auth.key import make_key_file, read_key_file
from mist.auth.secret_file import read_secret_file
from mist.errors import StartupError

SECRET = b"0123456789abcdef0123456789abcdef"


@pytest.mark.parametrize("ending", [b"", b"\n", b"\r\n"])
def test_a_secret_is_read_without_its_line_end(tmp_path: Path, ending: bytes) -> None:
    path = tmp_path / "secret"
    path.write_bytes(SECRET + ending)
    assert read_secret_file(path, "JWTs") == SECRET


@pytest.mark.parametrize("size", [0, 31, 5_000])
def test_a_secret_of_a_wrong_length_is_refused(tmp_path: Path, size: int) -> None:
    path = tmp_path / "secret"
    path.write_bytes(b"x" * size)
    with pytest.raises(StartupError, match="expected 32 to 4,096") as caught:
        read_secret_file(path, "JWTs")
    assert "xxx" not in str(caught.value)


def test_a_file_that_is_missing_is_told(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match=r"secret file of JWTs .* No such file"):
        read_secret_file(tmp_path / "missing", "JWTs")


def test_a_file_that_others_can_read_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "secret"
    path.write_bytes(SECRET)
    path.chmod(0o644)
    read_secret_file(path, "JWTs")
    assert "chmod 600" in caplog.text


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a file to another group")
@pytest.mark.parametrize(("mode", "warned"), [(0o440, False), (0o460, True), (0o444, True)])
def test_a_key_that_was_given_to_a_group_is_not_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int, warned: bool
) -> None:
    """As a secret of Kubernetes is: with `chmod 600` the server could not read it."""
    path = tmp_path / "key"
    make_key_file(path)
    os.chown(path, -1, 12345)
    path.chmod(mode)
    read_key_file(path)
    assert ("chmod 600" in caplog.text) == warned
