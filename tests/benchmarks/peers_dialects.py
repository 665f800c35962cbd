"""How NATS and Redis are spoken to, for the driver of `mist bench`.

Messages carry their tags joined into one subject or channel; a subscriber to all that carry
the first tag takes a wildcard. That is the same number of deliveries, but not the same
matching: tags match in any order and combination, a subject only by its beginning.
"""

from collections.abc import Sequence

from mist.bench.dialect import Dialect

__all__ = ["Nats", "RedisPublisher", "RedisSubscriber"]


class Nats(Dialect):
    """The NATS client protocol, core subjects, nothing acknowledged."""

    fence = b"PING\r\n"
    fenced = b"PONG\r\n"
    refusal = b"-ERR"

    def opening(self) -> tuple[bytes, bytes]:
        return b'CONNECT {"verbose":false,"pedantic":false}\r\n' + self.fence, self.fenced

    def subscribe(self, tags: Sequence[str], *, wider: bool = False) -> bytes:
        subject = ".".join(tags) + (".>" if wider else "")
        return b"SUB %b 1\r\n" % subject.encode()

    def publish(self, tags: Sequence[str], data: bytes) -> bytes:
        return b"PUB %b %d\r\n%b\r\n" % (".".join(tags).encode(), len(data), data)

    def delivery(self, tags: Sequence[str], data: bytes) -> bytes:
        return b"MSG %b 1 %d\r\n%b\r\n" % (".".join(tags).encode(), len(data), data)

    def control(self, data: bytes, start: int) -> tuple[int, bytes] | None:
        return (6, b"PONG\r\n") if data.startswith(b"PING\r\n", start) else None


class RedisPublisher(Dialect):
    """RESP 2 as a publisher hears it: every PUBLISH is answered with a number."""

    fence = b"PING\r\n"
    fenced = b"+PONG\r\n"
    refusal = b"-"

    def opening(self) -> tuple[bytes, bytes]:
        return self.fence, RedisPublisher.fenced

    def subscribe(self, tags: Sequence[str], *, wider: bool = False) -> bytes:
        if wider:
            return _array("PSUBSCRIBE", ",".join(tags) + ",*")
        return _array("SUBSCRIBE", ",".join(tags))

    def publish(self, tags: Sequence[str], data: bytes) -> bytes:
        return _array("PUBLISH", ",".join(tags), data)

    def delivery(self, tags: Sequence[str], data: bytes) -> bytes:
        if len(tags) > 1:
            return _array("pmessage", f"{tags[0]},*", ",".join(tags), data)
        return _array("message", tags[0], data)


class RedisSubscriber(RedisPublisher):
    """RESP 2 once subscribed, where the answer to PING is an array."""

    fenced = b"*2\r\n$4\r\npong\r\n$0\r\n\r\n"


def _array(*items: str | bytes) -> bytes:
    raw = [item.encode() if isinstance(item, str) else item for item in items]
    bulk = [b"$%d\r\n%b\r\n" % (len(item), item) for item in raw]
    return b"*%d\r\n%b" % (len(raw), b"".join(bulk))
