"""Delta tables: Parquet files that Spark has written, and a log that `deltalake` begins.

Only the log is Delta's. So it takes no plug-in of Spark's, which would have to fit its version
and be fetched by the JVM: the package `deltalake` (extra `delta`) is enough.
"""

import shutil
from pathlib import Path

from mist.pipeline.errors import NotInstalled

__all__ = ["begin_log", "live_files", "require_delta"]

LOG = "_delta_log"


def require_delta() -> None:
    """See that Delta tables can be made.

    Raises:
        NotInstalled: names the package.
    """
    try:
        import deltalake  # noqa: F401
    except ImportError:
        raise NotInstalled("Delta tables need deltalake: pip install deltalake") from None


def begin_log(folder: Path) -> None:
    """Have all Parquet files in a folder be a Delta table, at its version 0. A log that is
    there already, and with it all older versions, is forgotten.

    Raises:
        NotInstalled: see `require_delta`.
    """
    require_delta()
    from deltalake import convert_to_deltalake

    shutil.rmtree(folder / LOG, ignore_errors=True)
    convert_to_deltalake(folder, mode="ignore")


def live_files(folder: Path) -> set[Path]:
    """The files of the newest version.

    Raises:
        NotInstalled: see `require_delta`.
    """
    require_delta()
    from deltalake import DeltaTable

    # Relative to the folder, or whole where the table was told of files elsewhere.
    return {folder / str(file) for file in DeltaTable(folder).file_uris()}
