"""The units of systemd, as far as they can be checked without it."""

import configparser
import os
import shutil
import subprocess
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from mist.config import load_config

UNITS = Path(__file__).parents[2] / "deploy" / "systemd"


def settings_file(folder: Path) -> Path:
    """The file of settings, with a secret that is there."""
    (folder / "secret").write_text("a-secret-of-tests\n")
    file = folder / "mist.toml"
    text = (UNITS / "mist.toml").read_text()
    file.write_text(text.replace("/etc/mist/secret", str(folder / "secret")))
    return file


def values(unit: str, section: str, key: str) -> list[str]:
    """All values of a key; configparser would keep the last of them only."""
    assert configparser.ConfigParser(strict=False).read(UNITS / unit)
    text = (UNITS / unit).read_text().partition(f"[{section}]")[2].partition("\n[")[0]
    return [line.partition("=")[2] for line in text.splitlines() if line.startswith(f"{key}=")]


def test_the_sockets_are_those_of_the_listeners(tmp_path: Path) -> None:
    config = load_config({"config": str(settings_file(tmp_path))}, {})
    listeners = [urlsplit(str(each)).netloc for each in config.listen]
    assert values("mist.socket", "Socket", "ListenStream") == listeners


def test_every_setting_that_is_suggested_is_one(tmp_path: Path) -> None:
    file = settings_file(tmp_path)
    lines = file.read_text().splitlines()
    file.write_text("\n".join(line.removeprefix("# ") if " = " in line else line for line in lines))
    config = load_config({"config": str(file)}, {})
    assert config.server_names == ("mist.example.org",)


@pytest.fixture
def analyze() -> str:
    found = shutil.which("systemd-analyze")
    if found is None:
        pytest.skip("no systemd-analyze; Debian: apt-get install systemd")
    return found


def test_systemd_understands_all_of_it(tmp_path: Path, analyze: str) -> None:
    # Where there is a program by that name, nothing is left to complain of.
    for unit in ("mist.service", "mist.socket"):
        text = (UNITS / unit).read_text().replace("/opt/mist/bin/mist", shutil.which("true") or "")
        (tmp_path / unit).write_text(text)
    done = subprocess.run(
        [analyze, "verify", "--man=no", *map(str, tmp_path.iterdir())],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "SYSTEMD_UNIT_PATH": f"{tmp_path}:"},
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_little_is_left_to_an_intruder(analyze: str) -> None:
    command = [analyze, "security", "--offline=true", "--threshold=20", str(UNITS / "mist.service")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if "unrecognized option" in done.stderr:
        pytest.skip("systemd before 250")
    assert done.returncode == 0, done.stdout
