"""Opening the origin of a read: the member of the family that its options name."""

from mist.pipeline.source.options import ReadOptions
from mist.pipeline.source.origins import Origin

__all__ = ["open_origin"]


def open_origin(options: ReadOptions) -> Origin:
    """The archive or the server that the options name. Opens no file and no connection."""
    # Imported here, so that a read of one kind does not load the other.
    if options.address is not None:
        from mist.pipeline.source.origins.server import ServerOrigin

        return ServerOrigin(options.address)
    from mist.pipeline.source.origins.archive import ArchiveOrigin

    assert options.path is not None
    return ArchiveOrigin(options.path)
