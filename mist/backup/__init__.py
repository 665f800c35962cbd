"""Backups of a running server: its history, its tokens and their key, its settings.

    making      `mist backup`: asks the server by its control socket, copies the history itself
    exporting   the server's part: the tokens, which it has locked, and what else there is to copy
    manifest    `backup.json`: what a backup has
    restoring   `mist restore`: a data directory made of a backup

The history is read by the process of `mist backup`, in one transaction beside the server's appends;
the server writes its tokens into a file, in a thread. So nobody waits for either. Tokens are taken
last, so that as few revocations as can be are missing.

    DIR/history.db                  the log, as of one moment
    DIR/tokens.db, tokens.db.key    the tokens, and the key without which they are of no use
    DIR/mist.toml                   settings that are not the defaults, without secrets
    DIR/backup.json                 written last
"""

from typing import Final

__all__ = ["DESCRIBE", "EXPORT_TOKENS"]

DESCRIBE: Final = "backup"
EXPORT_TOKENS: Final = "backup-tokens"
"""Commands of the control socket; see `exporting`."""
