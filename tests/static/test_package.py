"""What is published beside mist.js fits it."""

import json
import re
import tomllib

from tests.static.pages import STATIC

PACKAGE = json.loads((STATIC / "package.json").read_text())


def test_its_version_is_the_servers() -> None:
    project = tomllib.loads((STATIC.parents[1] / "pyproject.toml").read_text())["project"]
    assert PACKAGE["version"] == project["version"]
    assert PACKAGE["name"] == project["name"]
    assert f'\nexport const version = "{PACKAGE["version"]}";\n' in (STATIC / "mist.js").read_text()
    assert PACKAGE["license"] == project["license"]


def test_every_file_it_names_is_there() -> None:
    named = {*PACKAGE["files"], PACKAGE["types"], *PACKAGE["exports"]["."].values()}
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
