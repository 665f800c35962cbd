"""What an erasure does about an export, and what it leaves alone."""

from pathlib import Path
from typing import Any

from mist.history.erasure import Erasure
from mist.pipeline.erasure.exports import erase_export
from mist.pipeline.exports import Export
from mist.pipeline.jobs.export import beside


def test_what_is_half_made_goes_and_what_only_has_a_like_name_stays(tmp_path: Path) -> None:
    out = tmp_path / "orders"
    half_made = beside(out)
    others = [tmp_path / name for name in (".orders.backup", ".orders.d", ".orders.0123456789")]
    for folder in (half_made, *others):
        folder.mkdir()
        (folder / "file").touch()
    spark: Any = None  # not needed where the export itself is gone
    export = Export(str(out), "parquet", 1.0, {})
    assert erase_export(spark, export, Erasure(tags=frozenset("a"))).state == "gone"
    assert not half_made.exists()
    assert all((folder / "file").exists() for folder in others)
