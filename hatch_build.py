"""Builds the compiled modules of mist, where that can be done, and parts the wheel of a release.

Each `mist/…/_name.pyx` is the equal of Python code next to it, which mist runs without it. So what
keeps them from being built (no compiler, no headers of Python, `MIST_PURE=1`) is told in one line,
and the package is a pure one. `pip install -v` shows the line, and the compiler's own output.

With `MIST_PARTS_APART=1`, as for a release, the wheel leaves out what distributions of their own
contain (each folder of deploy/ with a pyproject.toml) and depends on these instead, always or for
some extras, so that all can be installed in one place and removed again. Without it the wheel is
whole, and `pip install .` needs nothing but the checkout.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

__all__ = ["CompilingHook"]


class CompilingHook(BuildHookInterface[Any]):
    """Called by hatchling for each wheel."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        root = Path(self.root)
        if version == "standard" and os.environ.get("MIST_PARTS_APART", "0") not in ("", "0"):
            for modules, wanted in parts(root):
                self.build_config.target_config["exclude"] += [f"/mist/{each}" for each in modules]
                build_data["dependencies"] += wanted
        sources = sorted(root.glob("mist/**/_*.pyx"))
        if version == "editable":
            remove_built(sources)  # or what is built no more would go on to be loaded
        if os.environ.get("MIST_PURE", "0") not in ("", "0"):
            self.app.display_warning("mist is built without compiled parts: MIST_PURE is set")
            return
        self._scratch = Path(tempfile.mkdtemp(prefix="mist-build-"))
        try:
            built = compile_all(root, sources, self._scratch)
        except (Exception, SystemExit) as error:
            # Whatever a compiler's set-up raises: setuptools has no one class for it.
            reason = " ".join(str(error).split()) or type(error).__name__
            if isinstance(error, subprocess.CalledProcessError):
                reason = f"{error.cmd[0]} failed, see above"  # and not its whole command line
            self.app.display_warning(f"mist is built without compiled parts: {reason}")
            return
        if version == "editable":
            for source, binary in built.items():
                shutil.copy(binary, source.parent)
            return
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        for source, binary in built.items():
            place = source.parent.relative_to(root) / binary.name
            build_data["force_include"][str(binary)] = str(place)

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        shutil.rmtree(getattr(self, "_scratch", ""), ignore_errors=True)


def parts(root: Path) -> Iterator[tuple[list[str], list[str]]]:
    """What each distribution of a part contains, and how the server's depends on it.

    Yields:
        Files and folders below `mist/`; requirements.
    """
    for path in sorted(root.glob("deploy/*/pyproject.toml")):
        with path.open("rb") as file:
            described = tomllib.load(file)
        part, project = described["tool"]["mist"], described["project"]
        exactly = f"{project['name']}=={project['version']}"
        extras = part.get("extras")
        wanted = [f"{exactly}; extra == '{each}'" for each in extras] if extras else [exactly]
        yield part["modules"], wanted


def remove_built(sources: list[Path]) -> None:
    """Remove the modules beside their sources that this Python would load.

    Also before others take their place: to write into one that a process has loaded ends it.
    """
    for source in sources:
        source.with_suffix(sysconfig.get_config_var("EXT_SUFFIX")).unlink(missing_ok=True)


def compile_all(root: Path, sources: list[Path], scratch: Path) -> dict[Path, Path]:
    """Compile sources to modules of this Python.

    Args:
        root: of the project.
        sources: below it.
        scratch: a folder for what is made.

    Returns:
        The module of each source.
    """
    from Cython.Build import cythonize  # here, as hatchling imports this file for any target
    from setuptools import Distribution, Extension

    names = {source: ".".join(source.relative_to(root).with_suffix("").parts) for source in sources}
    # Without debug information, which is five times the code, and names this build's folders.
    flags = ["-g0", f"-ffile-prefix-map={scratch}=."]
    extensions = [
        Extension(name, [str(source)], extra_compile_args=flags) for source, name in names.items()
    ]
    made = cythonize(
        extensions, build_dir=str(scratch), language_level=3, quiet=True, nthreads=0, force=True
    )
    command = Distribution({"name": "mist", "ext_modules": made}).get_command_obj("build_ext")
    command.build_lib = str(scratch / "lib")
    command.build_temp = str(scratch / "temp")
    command.ensure_finalized()
    command.run()
    return {
        source: scratch / "lib" / command.get_ext_filename(name) for source, name in names.items()
    }


if __name__ == "__main__":
    # For development: build in place, without an installation.
    here = Path(__file__).resolve().parent
    with tempfile.TemporaryDirectory() as folder:
        every = sorted(here.glob("mist/**/_*.pyx"))
        found = compile_all(here, every, Path(folder))
        remove_built(every)
        for each, module in found.items():
            shutil.copy(module, each.parent)
            sys.stdout.write(f"{each.parent.relative_to(here)}/{module.name}\n")
