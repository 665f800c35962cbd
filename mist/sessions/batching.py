"""Messages published from inside the process, as batches for the broker.

Peers are checked by their protocols. A program that embeds mist has no protocol between, so
what it passes is checked here, in its own call: further on, a mistake would meet the messages
of others.
"""

import itertools
from collections.abc import Mapping, Sequence
from itertools import repeat
from operator import itemgetter

from mist.audience import Audience
from mist.broker.broker import Broker
from mist.broker.validation import Accepted
from mist.message import Envelope, TagSet, format_tags, parse_tags
from mist.wire import Batch, Run, record

__all__ = ["make_batches"]


def make_batches(
    broker: Broker,
    messages: Sequence[tuple[TagSet, bytes]],
    publisher: str = "",
    envelopes: Sequence[Envelope | None] = (),
) -> list[Accepted]:
    """Messages as batches, neighbours with one envelope together.

    Args:
        broker: whose rules for tags hold.
        messages, publisher, envelopes: as for `Hub.publish_all`.

    Raises:
        EmptyTag, InvalidTag, TooManyTags: a message's tags break the rules.
        ValueError: there is no message, or not one envelope for each.
        TypeError: something is not what it should be.
    """
    if not messages:
        raise ValueError("there is no message to publish")
    if envelopes and len(envelopes) != len(messages):
        raise ValueError(f"{len(envelopes)} envelopes for {len(messages)} messages")
    if not isinstance(publisher, str):
        raise TypeError(f"publisher must be str, not {type(publisher).__name__}")
    accepted: list[Accepted] = []
    pairs = zip(messages, envelopes or repeat(None, len(messages)), strict=True)
    for envelope, neighbours in itertools.groupby(pairs, key=itemgetter(1)):
        _check_envelope(envelope)
        runs: list[Run] = []
        framable = True
        for (tags, data), _ in neighbours:
            tag_list = _tag_list(tags, broker.limits.message_tags)
            if not isinstance(data, bytes):
                raise TypeError(f"data must be bytes, not {type(data).__name__}")
            runs.append((tag_list, record(tag_list, data), 1))
            framable = framable and b"\n" not in data
        batch = Batch.of_runs(runs, framable=framable, envelope=envelope)
        (part,) = broker.validate(batch)
        assert isinstance(part, Accepted)  # the tags have been looked at
        accepted.append(part)
    return accepted


def _tag_list(tags: TagSet, most: int) -> bytes:
    if isinstance(tags, str | bytes):  # whose letters would be tags
        raise TypeError(f"tags must be a set of str, not {type(tags).__name__}")
    names = list(tags)
    if not all(isinstance(tag, str) for tag in names):
        raise TypeError("each tag must be str")
    return format_tags(parse_tags(names, most)).encode()


def _check_envelope(envelope: Envelope | None) -> None:
    if envelope is None:
        return
    if not isinstance(envelope, Envelope):
        raise TypeError(f"an envelope must be Envelope or None, not {type(envelope).__name__}")
    if not isinstance(envelope.audience, Audience | None):
        raise TypeError("an envelope's audience must be Audience or None")
    meta = envelope.meta
    if meta is not None and not (
        isinstance(meta, Mapping)
        and all(isinstance(name, str) and isinstance(each, bytes) for name, each in meta.items())
    ):
        raise TypeError("an envelope's meta must map str to bytes")
