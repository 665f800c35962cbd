import pickle

import pytest

from mist.pipeline.source.address import Address
from mist.pipeline.source.errors import InvalidOption
from mist.pipeline.source.options import OffsetSpec, ReadOptions, WriteOptions

URL = "http://127.0.0.1:8080"
SECRET = "not-to-be-seen"


def read(**options: str) -> ReadOptions:
    return ReadOptions.parse(options)


def test_an_archive_is_read_whole_by_default() -> None:
    found = read(path="/data/archive")
    assert found == ReadOptions(
        path="/data/archive",
        address=None,
        alternatives=(),
        start=None,
        end=OffsetSpec("latest"),
        max_offsets=None,
        min_partitions=None,
        batch_size=20_000,
        fail_on_loss=True,
    )
    assert found.partitions >= 1


def test_all_options_are_read_whatever_their_case() -> None:
    found = read(
        URL=URL,
        token="t",
        Subscribe="a,b; c",
        startingoffsets="5",
        ENDINGTIMESTAMP="1795262400000",
        maxOffsetsPerTrigger="10",
        minPartitions="3",
        batchsize="7",
        failOnDataLoss="False",
        checkpointLocation="/c",
    )
    assert found.address == Address(False, "127.0.0.1", 8080, token="t")
    assert found.alternatives == (frozenset("ab"), frozenset("c"))
    assert found.start == OffsetSpec("id", 5)
    assert found.end == OffsetSpec("time", 1_795_262_400_000_000)
    assert (found.max_offsets, found.partitions, found.batch_size) == (10, 3, 7)
    assert not found.fail_on_loss


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "path or url"),
        ({"path": "/a", "url": URL}, "path and url"),
        ({"path": "/a", "subscribed": "a"}, "subscribed: no such option"),
        ({"path": "/a", "secret": SECRET}, "secret: is for a server"),
        ({"path": "s3a://bucket/a"}, "path: s3a:// is not supported; expected a path"),
        ({"url": URL, "token": SECRET}, "subscribe: is required with a token"),
        ({"url": URL, "token": SECRET, "secret": SECRET}, "secret and token"),
        ({"url": URL, "secret": SECRET + "\n"}, "secret: holds"),
        ({"url": URL, "secret": SECRET + "\ud800"}, "secret: holds"),
        ({"url": f"http://u:{SECRET}@h"}, "url: host, port and path only"),
        ({"url": f"http://h/?token={SECRET}"}, "url: host, port and path only"),
        ({"url": f"tcp://{SECRET}:1"}, "url: not one of a server"),
        ({"url": f"http://[{SECRET}"}, "url: not a URL"),
        ({"url": "http://h:99999"}, "url: not a URL"),
        ({"path": "/a", "subscribe": "a;;b"}, "subscribe: Empty tag"),
        ({"path": "/a", "startingOffsets": "0"}, "startingOffsets: not an id"),
        ({"path": "/a", "startingOffsets": "first"}, "startingOffsets: not an id"),
        ({"path": "/a", "startingOffsets": '{"0":1}'}, "startingOffsets: not an id"),
        ({"path": "/a", "endingOffsets": "earliest"}, "endingOffsets: earliest would"),
        ({"path": "/a", "endingOffsets": "-1"}, "endingOffsets: not an id"),
        ({"path": "/a", "startingTimestamp": "noon"}, "startingTimestamp: not a time"),
        (
            {"path": "/a", "startingTimestamp": "0", "startingOffsets": "1"},
            "startingOffsets and startingTimestamp",
        ),
        ({"path": "/a", "batchSize": "0"}, "batchSize: a whole number"),
        ({"path": "/a", "minPartitions": "two"}, "minPartitions: a whole number"),
        ({"path": "/a", "maxOffsetsPerTrigger": "1.5"}, "maxOffsetsPerTrigger: a whole number"),
        ({"path": "/a", "failOnDataLoss": "yes"}, "failOnDataLoss: true or false"),
        ({"path": "/a", "txn": "x"}, "txn: no such option of a reader"),
    ],
)
def test_a_wrong_option_is_named_in_one_line_without_credentials(
    options: dict[str, str], said: str
) -> None:
    with pytest.raises(InvalidOption) as caught:
        ReadOptions.parse(options)
    assert str(caught.value).startswith(said)
    assert "\n" not in str(caught.value)
    assert SECRET not in str(caught.value)


def test_what_is_wrong_for_a_batch_only_is_no_error_of_a_stream() -> None:
    options = {"path": "/a", "startingOffsets": "latest"}
    assert ReadOptions.parse(options, stream=True).start == OffsetSpec("latest")
    with pytest.raises(InvalidOption, match="startingOffsets: latest would read nothing"):
        ReadOptions.parse(options, stream=False)
    options = {"path": "/a", "maxOffsetsPerTrigger": "1"}
    assert ReadOptions.parse(options, stream=True).max_offsets == 1
    with pytest.raises(InvalidOption, match="maxOffsetsPerTrigger: is for readStream"):
        ReadOptions.parse(options, stream=False)


@pytest.mark.parametrize(
    ("url", "meant"),
    [
        ("http://h", Address(False, "h", 80)),
        ("https://h/", Address(True, "h", 443)),
        (" http://[::1]:8080/mist/ ", Address(False, "::1", 8080, "/mist")),
    ],
)
def test_urls_are_read(url: str, meant: Address) -> None:
    assert Address.parse(url, None, None) == meant


def test_credentials_are_not_in_what_is_shown_of_options() -> None:
    for options in ({"secret": SECRET}, {"token": SECRET, "subscribe": "a"}):
        found = ReadOptions.parse({"url": URL, **options})
        assert SECRET not in repr(found)
        assert SECRET not in str(found.address)
        assert found.address is not None
        assert SECRET in str(found.address.headers)
        assert pickle.loads(pickle.dumps(found)) == found


def test_a_folder_may_be_a_url_of_a_file() -> None:
    assert read(path="file:///data/archive").path == "/data/archive"
    assert read(path="file:/data/archive").path == "/data/archive"


def test_a_sink_needs_a_server() -> None:
    found = WriteOptions.parse({"url": URL, "txn": "a.b_c-1", "checkpointLocation": "/c"})
    assert found == WriteOptions(Address(False, "127.0.0.1", 8080), "a.b_c-1")
    for options, said in [
        ({}, "url: is required"),
        ({"path": "/a"}, "path: no such option of a writer"),
        ({"url": URL, "subscribe": "a"}, "subscribe: no such option of a writer"),
        ({"url": URL, "txn": "a/b"}, "txn: 1 to 128"),
        ({"url": URL, "txn": "x" * 129}, "txn: 1 to 128"),
        ({"url": URL, "txn": ".."}, "txn: 1 to 128"),
    ]:
        with pytest.raises(InvalidOption, match=said):
            WriteOptions.parse(options)
