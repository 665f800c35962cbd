"""Delta tables: Parquet files written by Spark, and a transaction log written by `deltalake`.

Only the log is specific to Delta. So no Spark plug-in is needed, which would have to match the
version of Spark and be downloaded by the JVM: the package `deltalake` (extra `delta`) is enough.
"""

import shutil
from pathlib import Path

from mist.pipeline.errors import NotInstalled

__all__ = ["begin_log", "live_files", "require_delta"]

LOG = "_delta_log"


def require_delta() -> None:
    """Check that Delta tables can be written.

    Raises:
        NotInstalled: the package is missing; the text names it.
    """
    try:
        import deltalake  # noqa: F401
    except ImportError:
        raise NotInstalled("Delta tables need deltalake: pip install deltalake") from None


def begin_log(folder: Path) -> None:
    """Convert all Parquet files in a folder to a Delta table at version 0.

    An existing log is deleted, and all older versions with it.

    Raises:
        NotInstalled: see `require_delta`.
    """
    require_delta()
    from deltalake import convert_to_deltalake

    shutil.rmtree(folder / LOG, ignore_errors=True)
    convert_to_deltalake(folder, mode="ignore")


def live_files(folder: Path) -> set[Path]:
    """The files of the current version.

    Raises:
        NotInstalled: see `require_delta`.
    """
    require_delta()
    from deltalake import DeltaTable

    # Relative to the folder, or absolute for files outside it.
    return {folder / str(file) for file in DeltaTable(folder).file_uris()}
