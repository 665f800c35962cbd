"""What a fuzzer does to something that was valid, and how often."""

from collections.abc import Sequence
from random import Random
from typing import Final

__all__ = ["Dice", "mutate"]


class Dice(Random):
    """The random numbers of one conversation.

    Args:
        seed: of all of them.

    Attributes:
        label: the seed.
        wildness: how often inputs are broken, 0.0 to 1.0: some conversations had better go on.
    """

    def __init__(self, seed: str) -> None:
        super().__init__(seed)
        self.label = seed
        self.wildness = self.choice((0.0, 0.1, 0.1, 1.0))

    def breaks(self, often: float) -> bool:
        """Whether to break a rule after which many a connection ends; `often` at its wildest."""
        return self.random() < often * self.wildness


_PIECES: Final[Sequence[bytes]] = (
    *(b"\0", b"\r", b"\n", b"\r\n", b"\r\n\r\n", b" ", b"\t", b",", b";", b"=", b"&", b"%", b"*"),
    *(b'"', b"\\", b"{", b"}", b"[", b"]", b"/", b".", b"..", b">", b":", b"-", b"+", b"#", b"|"),
    *(b"\xff", b"\xc3", b"\xc3\xa4", b"\xed\xa0\x80", b"\xf0\x9f\x98\x80", b"\x1b[2J", b"\x7f"),
    *(b"0", b"-1", b"1e999", b"9" * 30, b"99999999999999999999", b"2147483648", b"-0", b"0x10"),
    *(b"null", b"true", b"NaN", b"Infinity", b"%00", b"%0d%0a", b"%ff", b"\\ud800", b"\\u0000"),
    *(b"Host: x\r\n", b"Content-Length: 7\r\n", b"Transfer-Encoding: chunked\r\n", b"0\r\n\r\n"),
    *(b"publish a x\n", b"HTTP/1.1", b"PUB a 1\r\nx\r\n", b"Upgrade: websocket\r\n", b"\x88\x80"),
)


def mutate(rng: Dice, data: bytes, other: bytes = b"", changes: int = 3) -> bytes:
    """`data` with at most so many changes, each anywhere in it.

    Args:
        other: something of the same kind, of which a piece may be spliced in.
    """
    mutated = bytearray(data)
    for _ in range(rng.randint(1, changes)):
        at = rng.randrange(len(mutated) + 1)
        match rng.randrange(9):
            case 0 if mutated:
                mutated[at % len(mutated)] ^= 1 << rng.randrange(8)
            case 1 if mutated:
                mutated[at % len(mutated)] = rng.randrange(256)
            case 2:
                mutated[at:at] = rng.choice(_PIECES)
            case 3:
                del mutated[at : at + rng.choice((1, 1, 2, 8, 64))]
            case 4:
                piece = mutated[at : at + rng.choice((1, 4, 16))]
                mutated[at:at] = piece * rng.choice((1, 2, 40))
            case 5:
                start = rng.randrange(len(other) + 1)
                mutated[at:at] = other[start : start + rng.choice((2, 10, 100))]
            case 6:
                del mutated[at:]
            case 7:
                mutated[at:at] = rng.randbytes(rng.choice((1, 3, 12)))
            case _:
                piece = rng.choice(_PIECES)
                mutated[at : at + len(piece)] = piece
    return bytes(mutated)
