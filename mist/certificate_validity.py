"""When a certificate ends.

Python's `ssl` checks that a key belongs to a certificate, but doesn't say until when that is valid.
This reads as much of the DER encoding (X.690) as it takes to get to the validity (RFC 5280,
section 4.1): it stands in a fixed place, behind four fields that are skipped whole.
"""

import ssl
from datetime import UTC, datetime
from typing import Final

__all__ = ["validity"]

_BEGIN: Final = "-----BEGIN CERTIFICATE-----"
_END: Final = "-----END CERTIFICATE-----"
_SEQUENCE: Final = 0x30
_VERSION: Final = 0xA0  # [0], which certificates of version 1 lack
_UTC_TIME: Final = 0x17  # two digits of the year; 50 and above are of the 20th century
_GENERALIZED_TIME: Final = 0x18


def validity(pem: str) -> tuple[datetime, datetime]:
    """From when until when the first certificate of a chain is valid.

    Raises:
        ValueError: there is none that can be read.
    """
    begin, end = pem.find(_BEGIN), pem.find(_END)
    if begin < 0 or end < begin:
        raise ValueError("no certificate in PEM")
    der = ssl.PEM_cert_to_DER_cert(pem[begin : end + len(_END)])
    certificate = _content(der, _SEQUENCE)
    fields = _content(certificate, _SEQUENCE)
    if fields[:1] == bytes([_VERSION]):
        fields = _after(fields)
    for _ in ("serialNumber", "signature", "issuer"):
        fields = _after(fields)
    times = _content(fields, _SEQUENCE)
    return _time(times), _time(_after(times))


def _element(data: bytes) -> tuple[int, int, int]:
    """The tag of the first element, where its content begins, and where it ends."""
    try:
        tag, length, start = data[0], data[1], 2
        if length & 0x80:
            start += length & 0x7F
            length = int.from_bytes(data[2:start])
    except IndexError:
        raise ValueError("the certificate is cut off") from None
    if start + length > len(data):
        raise ValueError("the certificate is cut off")
    return tag, start, start + length


def _content(data: bytes, expected: int) -> bytes:
    tag, start, end = _element(data)
    if tag != expected:
        raise ValueError("not a certificate (X.509)")
    return data[start:end]


def _after(data: bytes) -> bytes:
    return data[_element(data)[2] :]


def _time(data: bytes) -> datetime:
    tag, start, end = _element(data)
    text = data[start:end].decode("ascii", "replace")
    if tag == _UTC_TIME:
        text = ("19" if text[:2] >= "50" else "20") + text
    elif tag != _GENERALIZED_TIME:
        raise ValueError("not a certificate (X.509)")
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)
