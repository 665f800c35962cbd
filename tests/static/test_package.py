"""What is published beside mist.js fits it."""

import gzip
import hashlib
import json
import os
import re
import shutil
import subprocess
import tarfile
import tomllib
from pathlib import Path

from tests.node import FOLDER, find_node
from tests.static.pages import STATIC

PACKAGE = json.loads((STATIC / "package.json").read_text())


def test_its_version_is_the_servers() -> None:
    project = tomllib.loads((STATIC.parents[1] / "pyproject.toml").read_text())["project"]
    assert PACKAGE["version"] == project["version"]
    assert PACKAGE["name"] == project["name"]
    assert f'\nexport const version = "{PACKAGE["version"]}";\n' in (STATIC / "mist.js").read_text()
    assert PACKAGE["license"] == project["license"]


def test_what_is_served_is_made_of_the_source() -> None:
    digest = hashlib.sha256((STATIC / "mist.js").read_bytes()).hexdigest()
    banner = (STATIC / "mist.min.js").read_text().partition("\n")[0]
    expected = f"/* mist.js {PACKAGE['version']}, {PACKAGE['license']}; of {digest} */"
    assert banner == expected, "npm ci --prefix tests/npm && npm run build --prefix tests/npm"


def test_what_is_served_is_what_the_build_makes(tmp_path: Path) -> None:
    node = find_node("esbuild")
    subprocess.run([node, FOLDER / "build.mjs", tmp_path], check=True, timeout=60)
    for name in ("mist.min.js", "mist.min.js.map"):
        assert (tmp_path / name).read_bytes() == (STATIC / name).read_bytes(), name
    found = json.loads((tmp_path / "mist.min.js.map").read_text())
    assert found["sources"] == ["mist.js"]
    assert found["sourcesContent"] == [(STATIC / "mist.js").read_text()]


def test_it_can_be_packed_and_imported(tmp_path: Path) -> None:
    """As npm has it: what it holds, and that a program can import it by its name."""
    node = find_node()
    npm = shutil.which("npm")
    assert npm is not None, "npm comes with Node; Debian: apt-get install npm"
    command = [npm, "pack", STATIC, "--json", "--pack-destination", tmp_path, "--ignore-scripts"]
    packed = subprocess.run(command, check=True, capture_output=True, timeout=60, cwd=tmp_path)
    [described] = json.loads(packed.stdout)
    names = {each["path"] for each in described["files"]}
    assert names == {*PACKAGE["files"], "README.md", "package.json"}
    modules = tmp_path / "node_modules"
    with tarfile.open(tmp_path / described["filename"]) as archive:
        archive.extractall(modules, filter="data")
    (modules / "package").rename(modules / PACKAGE["name"])
    script = f"""
      const [one, two] = [await import("{PACKAGE["name"]}"),
                          await import("{PACKAGE["name"]}/mist.min.js")];
      for (const each of [one, two]) console.log(Object.keys(each).sort().join(), each.version);
    """
    run = [node, "--input-type=module", "--eval", script]
    told = subprocess.run(run, check=True, capture_output=True, text=True, cwd=tmp_path).stdout
    assert told == f"MistError,connect,version {PACKAGE['version']}\n" * 2


def test_publint_has_no_complaint() -> None:
    node = find_node("publint")
    command = [node, FOLDER / "node_modules" / "publint" / "src" / "cli.js", "run", STATIC]
    plain = {**os.environ, "NO_COLOR": "1"}  # in CI it colours what is no terminal, too
    done = subprocess.run(
        [*command, "--strict"], capture_output=True, text=True, timeout=60, env=plain
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("Linting...\nAll good!\n")  # no suggestions either


def test_the_lock_file_names_no_place_to_load_from() -> None:
    assert '"resolved"' not in (FOLDER / "package-lock.json").read_text()


def test_its_readme_shows_what_there_is() -> None:
    readme = (STATIC / "README.md").read_text()
    assert f"npm install {PACKAGE['name']}" in readme
    script = (STATIC / "mist.js").read_text().partition("\nclass Client {")[2].partition("\n}\n")[0]
    methods = set(re.findall(r"^  (?:async )?(\w+)\(", script, re.MULTILINE)) - {"constructor"}
    assert set(re.findall(r"client\.(\w+)\(", readme)) == methods


def test_the_page_about_browsers_says_how_large_it_is() -> None:
    served = (STATIC / "mist.min.js").read_bytes()
    plain, compressed = (round(len(each) / 1000) for each in (served, gzip.compress(served)))
    page = (STATIC.parents[1] / "docs" / "browser.md").read_text()
    assert f"minified ({plain} KB, {compressed} KB with gzip)" in page


def test_every_file_it_names_is_there() -> None:
    named = {*PACKAGE["files"], PACKAGE["types"], *PACKAGE["exports"]["."].values(), "README.md"}
    for name in named:
        assert (STATIC / name).is_file(), name


def test_the_types_declare_what_the_module_exports() -> None:
    def exported(name: str, pattern: str) -> set[str]:
        return set(re.findall(pattern, (STATIC / name).read_text(), re.MULTILINE))

    pattern = r"^export (?:async )?(?:function|class|const) (\w+)"
    names = {"connect", "MistError", "version"}
    assert exported("mist.js", pattern) == exported("mist.d.ts", pattern) == names


def test_the_types_declare_every_public_name_of_a_client() -> None:
    script = (STATIC / "mist.js").read_text().partition("\nclass Client {")[2].partition("\n}\n")[0]
    types = (STATIC / "mist.d.ts").read_text().partition("interface Client {")[2]
    public = set(re.findall(r"^  (?:get |async )?(\w+)\(", script, re.MULTILINE)) - {"constructor"}
    declared = re.findall(r"^  (?:readonly )?(\w+)[(:<]", types.partition("\n}\n")[0], re.MULTILINE)
    assert public == set(declared) >= {"subscribe", "on", "refresh", "close", "state", "transport"}
