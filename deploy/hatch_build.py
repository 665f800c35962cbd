"""Adds the modules of a part of mist to its distribution, from wherever they are.

In a checkout they are the server's, two folders up, and in a source distribution beside this file.
Each part has a link to this.
"""

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

__all__ = ["AddingHook"]


class AddingHook(BuildHookInterface[Any]):
    """Called by hatchling for each wheel and source distribution."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        here = Path(self.root)
        package = here / "mist"
        if not package.is_dir():
            package = here.parents[1] / "mist"
        # Not links, which would lead nowhere in a source distribution.
        included = build_data["force_include"]
        included = {str(Path(path).resolve()): name for path, name in included.items()}
        for name in self.metadata.config["tool"]["mist"]["modules"]:
            for path in files(package / name):
                included[str(path)] = f"mist/{path.relative_to(package)}"
        build_data["force_include"] = included


def files(place: Path) -> list[Path]:
    """A file, or all that a folder has but what Python keeps compiled."""
    found = sorted(place.rglob("*")) if place.is_dir() else [place]
    return [path for path in found if path.is_file() and path.suffix != ".pyc"]
