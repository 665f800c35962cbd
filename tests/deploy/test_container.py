"""deploy/Containerfile, as far as it can be checked without a builder, and with one if there is.

pytest tests/deploy --slow      runs the commands of its build stage, and builds it if something can
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mist.config import load_config
from tests.processes import serving
from tests.servers import port_of

ROOT = Path(__file__).parents[2]
FILE = ROOT / "deploy" / "Containerfile"


def instructions() -> list[tuple[str, str]]:
    """Each instruction and what follows it, comments and line ends taken out."""
    lines = [line for line in FILE.read_text().splitlines() if not line.startswith("#")]
    text = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [
        (name, rest)
        for name, _, rest in (line.partition(" ") for line in text.splitlines())
        if name
    ]


def all_of(name: str, *, of: int) -> list[str]:
    """What follows an instruction, in a stage."""
    stage, found = -1, []
    for each, rest in instructions():
        stage += each == "FROM"
        if each == name and stage == of:
            found.append(rest)
    return found


def variables() -> dict[str, str]:
    return dict(word.partition("=")[::2] for word in shlex.split(all_of("ENV", of=1)[0]))


def test_its_variables_are_settings(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("a-secret-of-tests")
    mine = {name: value for name, value in variables().items() if name.startswith("MIST_")}
    config = load_config({}, {**mine, "MIST_SECRET_FILE": str(secret)})
    assert str(config.data) == all_of("VOLUME", of=1)[0].strip('[]"') == "/data"
    ports = [str(each.port) for each in config.listen]
    assert all_of("EXPOSE", of=1) == [" ".join(ports)]


def test_it_is_not_root_and_has_what_it_copies() -> None:
    assert all_of("USER", of=1) == ["10001:10001"]
    for copied in all_of("COPY", of=0):
        for source in copied.split()[:-1]:
            assert (ROOT / source).exists(), source


def test_its_health_check_tells_a_server_from_none(tmp_path: Path) -> None:
    (check,) = all_of("HEALTHCHECK", of=1)
    _, option, code = json.loads(check.partition("CMD ")[2])
    with serving(tmp_path, "--listen", "http://127.0.0.1:0") as server:
        code = code.replace(":8080/", f":{port_of(server.urls[0])}/")
        command = [sys.executable, option, code]
        assert subprocess.run(command, timeout=20, check=False).returncode == 0
        server.stop()
        done = subprocess.run(command, timeout=20, check=False, capture_output=True)
        assert done.returncode == 1


@pytest.mark.slow
def test_the_commands_of_the_build_stage_make_a_compiled_server(tmp_path: Path) -> None:
    """In a directory for `/src` and one for `/opt/mist`; the machine has a compiler already."""
    source, target = tmp_path / "src", tmp_path / "opt"
    source.mkdir()
    for copied in all_of("COPY", of=0):
        for each in copied.split()[:-1]:
            if (ROOT / each).is_dir():
                ignored = shutil.ignore_patterns("*.so", "__pycache__")
                shutil.copytree(ROOT / each, source / each, ignore=ignored)
            else:
                shutil.copy(ROOT / each, source / each)
    command = all_of("RUN", of=0)[-1].replace("/opt/mist", str(target))
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "EXTRAS": "redis,postgres"}
    done = subprocess.run(["sh", "-c", command], cwd=source, env=environ, timeout=900, check=False)
    assert done.returncode == 0


def builder() -> str | None:
    """A program that can build images here."""
    for name in ("podman", "buildah", "docker"):
        if shutil.which(name):
            done = subprocess.run([name, "info"], capture_output=True, timeout=60, check=False)
            if done.returncode == 0:
                return name
    return None


@pytest.mark.slow
def test_it_is_built() -> None:
    found = builder()
    if found is None:
        pytest.skip("there is no podman, buildah or docker that works")
    command = [found, "build", "--tag", "mist-test", "--file", str(FILE), str(ROOT)]
    assert subprocess.run(command, timeout=1800, check=False).returncode == 0
