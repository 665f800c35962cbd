"""The certificate of TLS listeners, which can be replaced while they listen.

A renewed certificate means another `SSLContext`, and not another chain in the same one: OpenSSL
keeps a chain for each kind of key, so that some clients would be shown the old one on. Connections
that are there go on with what they have agreed.
"""

import hashlib
import math
import os
import ssl
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import attrs

from mist.certificate_validity import validity
from mist.errors import StartupError

__all__ = ["Certificate", "digest_of"]

_SOON: Final = 21 * 86_400  # seconds before its end


@attrs.define(eq=False)
class Certificate:
    """What TLS listeners speak with.

    Attributes:
        context: for connections that begin now.
        digest: of the files it came from; see `digest_of`.
        chain: the file it came from.
        begins, ends: Unix seconds between which it is valid; infinite where that can't be read.
    """

    context: ssl.SSLContext
    digest: bytes
    chain: Path
    begins: float = -math.inf
    ends: float = math.inf

    @classmethod
    def load(cls, chain: Path, key: Path) -> "Certificate":
        """A certificate from files in PEM. Blocks.

        Raises:
            StartupError: the certificate or key can't be used.
        """
        # The digest first: what changes in between is noticed then.
        digest = digest_of(chain, key)
        context = _context(chain, key)
        try:
            begins, ends = [each.timestamp() for each in validity(chain.read_text("ascii"))]
        except (OSError, ValueError):  # of a form that OpenSSL knows, and this doesn't
            return cls(context, digest, chain)
        return cls(context, digest, chain, begins, ends)

    def replace(self, other: "Certificate") -> None:
        """Speak with another from now on."""
        self.context, self.digest, self.chain = other.context, other.digest, other.chain
        self.begins, self.ends = other.begins, other.ends

    def is_valid(self, now: float) -> bool:
        """Whether it is valid at a time (Unix seconds), as far as that is known."""
        return self.begins <= now < self.ends

    def trouble(self, now: float) -> str | None:
        """What an operator has to know of its validity: that it ends soon, or isn't valid."""
        if now < self.begins:
            return f"{self.chain} is not valid before {_date(self.begins)}"
        if now >= self.ends:
            return f"{self.chain} ended at {_date(self.ends)}"
        if now >= self.ends - _SOON:
            return f"{self.chain} ends at {_date(self.ends)}"
        return None


def _date(time: float) -> str:
    return f"{datetime.fromtimestamp(time, UTC):%Y-%m-%d %H:%M} UTC"


def _context(chain: Path, key: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    texts = {}
    for path in (chain, key):
        try:
            texts[path] = path.read_bytes()
        except OSError as error:
            raise StartupError(f"{path}: {_reason(error)}") from error
    try:
        # An encrypted key would make OpenSSL ask on the terminal; an empty answer fails.
        context.load_cert_chain(chain, key, password="")
    except (ssl.SSLError, OSError) as error:
        text = f"{chain} and {key}: no usable certificate and key"
        if getattr(error, "reason", None) == "KEY_VALUES_MISMATCH":
            text += ": the key is another certificate's"
        elif b"CERTIFICATE-----" not in texts[chain]:  # of these OpenSSL says "PEM lib"
            text += f": {chain} has no certificate in PEM"
        elif b"PRIVATE KEY-----" not in texts[key]:
            text += f": {key} has no key in PEM"
        elif b"ENCRYPTED" in texts[key]:
            text += f": {key} is encrypted; mist takes one without a passphrase"
        raise StartupError(text) from error
    return context


def _reason(error: OSError) -> str:
    return os.strerror(error.errno or 0).lower()


def digest_of(chain: Path, key: Path) -> bytes:
    """By what a change of files is noticed. Blocks.

    What is in them rather than when they were written: file systems tell times apart by
    milliseconds or seconds, and two files are written one after the other.
    """
    found = hashlib.sha256()
    for path in (chain, key):
        try:
            found.update(path.read_bytes())
        except OSError:
            found.update(b"missing")
    return found.digest()
