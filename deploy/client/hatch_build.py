"""Adds the modules of the client to its distribution, from wherever they are.

In a checkout they are the server's, two folders up, and in a source distribution beside this file.
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
        for name in self.metadata.config["tool"]["mist"]["modules"]:
            for path in sorted([*(package / name).rglob("*.py")] or [package / name]):
                build_data["force_include"][str(path)] = f"mist/{path.relative_to(package)}"
