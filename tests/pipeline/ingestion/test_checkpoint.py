"""What a killed query left unfinished in its checkpoint is cleared; nothing else is."""

from pathlib import Path

from mist.pipeline.ingestion.checkpoint import clear_uncommitted

UUID = "38c4d7b2-6a59-4f0a-9ad1-0123456789ab"


def test_only_what_was_never_renamed_is_deleted(tmp_path: Path) -> None:
    kept = [
        "metadata",
        ".metadata.crc",
        "offsets/0",
        "offsets/.0.crc",
        "commits/0",
        "sources/0/1.tmp",
        f"state/0/0/1.{UUID}.tmp.delta",
        "offsets/.0.notes.tmp",
    ]
    gone = [f".metadata.{UUID}.tmp", f"offsets/.0.{UUID}.tmp", f"offsets/..0.{UUID}.tmp.crc"]
    for name in kept + gone:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    clear_uncommitted(tmp_path)
    assert sorted(kept) == sorted(
        str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()
    )


def test_a_checkpoint_that_is_not_there_yet_is_left_so(tmp_path: Path) -> None:
    clear_uncommitted(tmp_path / "none")
    assert not (tmp_path / "none").exists()
