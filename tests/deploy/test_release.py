"""deploy/release.py; the extra `release` has what it needs, and `deploy` with it."""

import hashlib
import json
import subprocess
import sys
import tarfile
import zipfile
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import requires
from pathlib import Path

import pytest

import mist
from tests.processes import environment

ROOT = Path(mist.__file__).parents[1]
PARTS = ("bench", "client", "spark")


def release(folder: Path, *options: str) -> Path:
    """The files of a release, made with temporary files beside them."""
    scratch = folder.with_name(f"{folder.name}-scratch")
    scratch.mkdir()
    subprocess.run(
        [sys.executable, ROOT / "deploy" / "release.py", folder, *options],
        cwd=scratch,
        env=environment(TMPDIR=str(scratch)),
        check=True,
        timeout=600,
    )
    return folder


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two, made at different places; the other without what pip installs today."""
    folder = tmp_path_factory.mktemp("release")
    with ThreadPoolExecutor() as pool:
        one = pool.submit(release, folder / "one")
        other = pool.submit(release, folder / "another-one", "--without-bill")
        return [one.result(), other.result()]


@pytest.fixture(scope="module")
def made(both: list[Path]) -> Path:
    return both[0]


def only(folder: Path, pattern: str) -> Path:
    [path] = folder.glob(pattern)
    return path


def as_written(name: str) -> str:
    """A distribution's name in the form in which it is compared."""
    return name.lower().replace("_", "-")


def modules(wheel: Path) -> set[str]:
    return {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("mist/")}


def test_repeated_elsewhere_it_makes_the_same_bytes(both: list[Path]) -> None:
    one, other = ({path.name: path.read_bytes() for path in folder.iterdir()} for folder in both)
    [bill] = one.keys() - other.keys()
    assert bill.endswith(".cdx.json")
    del one[bill], one["SHA256SUMS"]  # which has its sum
    assert {*one, "SHA256SUMS"} == other.keys()
    assert [name for name in one if one[name] != other[name]] == []


def test_it_has_everything_that_is_published(made: Path) -> None:
    version = mist.__version__
    server = only(made, f"mist_pubsub-{version}-*.whl").name
    assert {path.name for path in made.iterdir()} == {
        server,
        f"mist_pubsub-{version}.tar.gz",
        *(f"mist_pubsub_{each}-{version}-py3-none-any.whl" for each in PARTS),
        *(f"mist_pubsub_{each}-{version}.tar.gz" for each in PARTS),
        f"mist-pubsub-{version}.tgz",
        f"mist-pubsub-{version}.cdx.json",
        "SHA256SUMS",
    }
    assert "-linux_" not in server  # no index takes that


def test_the_sums_are_those_of_the_files(made: Path) -> None:
    lines = (made / "SHA256SUMS").read_text().splitlines()
    sums = {name: digest for digest, name in (line.split("  ") for line in lines)}
    assert sums == {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in made.iterdir()
        if path.name != "SHA256SUMS"
    }


def test_the_source_distribution_has_all_that_is_committed(made: Path) -> None:
    with tarfile.open(only(made, "mist_pubsub-*.tar.gz")) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    listed = subprocess.run(
        ["git", "ls-tree", "-r", "-z", "--name-only", "HEAD"],
        cwd=ROOT,
        capture_output=True,
        check=True,
        text=True,
    )
    assert names == {*listed.stdout.split("\0")[:-1], "PKG-INFO"}


def test_no_two_wheels_share_a_file(made: Path) -> None:
    every = [modules(path) for path in made.glob("*.whl")]
    assert len(every) == 1 + len(PARTS)
    assert sum(map(len, every)) == len(set[str]().union(*every))


def test_the_servers_wheel_is_compiled_and_has_no_part(made: Path) -> None:
    server = modules(only(made, "mist_pubsub-*.whl"))
    for folder in ("bench", "cli/bench", "pipeline", "cli/pipeline", "client"):
        assert (ROOT / "mist" / folder).is_dir()
        assert not [name for name in server if name.startswith(f"mist/{folder}/")]
    sources = {str(path.relative_to(ROOT))[:-4] for path in (ROOT / "mist").rglob("*.pyx")}
    assert sources == {name.partition(".")[0] for name in server if name.endswith(".so")} > set()


def test_the_package_for_npm_has_its_license(made: Path) -> None:
    with tarfile.open(only(made, "*.tgz")) as opened:
        file = opened.extractfile("package/LICENSE")
        assert file is not None
        assert file.read() == (ROOT / "LICENSE").read_bytes()


def test_the_bill_of_materials_has_what_is_installed_and_no_path_of_this_machine(
    made: Path,
) -> None:
    text = only(made, "*.cdx.json").read_text()
    bill = json.loads(text)
    assert bill["bomFormat"] == "CycloneDX"
    main = bill["metadata"]["component"]
    assert (main["name"], main["version"]) == ("mist-pubsub", mist.__version__)
    versions = {as_written(each["name"]): each["version"] for each in bill["components"]}
    for part in PARTS:
        assert versions[f"mist-pubsub-{part}"] == mist.__version__
    assert "pyspark" not in versions  # who installs an extra gets more than is listed
    needed = {each.partition(">")[0] for each in requires("mist-pubsub") or () if ";" not in each}
    assert versions.keys() > {as_written(name) for name in needed} > {"trio", "attrs"}
    assert "pip" not in versions
    assert "file:" not in text
    assert str(made.parent) not in text
