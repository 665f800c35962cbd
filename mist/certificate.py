"""The certificate of TLS listeners, which can be replaced while they listen.

A renewed certificate means another `SSLContext`, and not another chain in the same one: OpenSSL
keeps a chain for each kind of key, so that some clients would be shown the old one on. Connections
that are there go on with what they have agreed.
"""

import hashlib
import os
import ssl
from pathlib import Path

import attrs

from mist.errors import StartupError

__all__ = ["Certificate", "digest_of"]


@attrs.define(eq=False)
class Certificate:
    """What TLS listeners speak with.

    Attributes:
        context: for connections that begin now.
        digest: of the files it came from; see `digest_of`.
    """

    context: ssl.SSLContext
    digest: bytes

    @classmethod
    def load(cls, chain: Path, key: Path) -> "Certificate":
        """A certificate from files in PEM. Blocks.

        Raises:
            StartupError: the certificate or key can't be used.
        """
        # The digest first: what changes in between is noticed then.
        digest = digest_of(chain, key)
        return cls(_context(chain, key), digest)

    def replace(self, other: "Certificate") -> None:
        """Speak with another from now on."""
        self.context, self.digest = other.context, other.digest


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
