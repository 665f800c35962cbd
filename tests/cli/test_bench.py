"""`mist bench` as a user runs it, small: which figures come, and what wrong wishes get."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from mist.cli import main
from tests.engine.redis_server import find_redis
from tests.processes import Process, environment, mist, serving

THROUGHPUT = {
    "transport",
    "publishers",
    "subscribers",
    "size_bytes",
    "tag_lists",
    "window_messages",
    "messages",
    "deliveries",
    "lost",
    "repeated",
    "reordered",
    "seconds",
    "messages_per_second",
    "deliveries_per_second",
    "server_cpu_seconds",
    "server_cpu_seconds_per_million_messages",
    "server_cpu_seconds_per_million_deliveries",
    "driver_cpu_seconds",
}
HTTP = ("http_request", "ws_connect", "http_stream")
HISTORY = (
    "history_append",
    "history_publish",
    "history_size",
    "history_replay",
    "history_search",
)
QUANTILES = {"p50_us", "p90_us", "p99_us", "max_us"}


@pytest.fixture(scope="module")
def serve_options() -> tuple[str, ...]:
    return ("--secret", "s3cret", "--history", "none")


def bench(*arguments: str, **variables: str) -> dict[str, Any]:
    done = mist("bench", *arguments, "--json", **variables)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


def given(process: Process) -> list[str]:
    """Options for a server that runs already."""
    urls = [option for url in process.urls for option in ("--server", url)]
    return [*urls, "--pid", str(process.popen.pid)]


def test_match_needs_no_server() -> None:
    (row,) = bench("match", "--subscriptions", "500", "--vocabulary", "100")["match"]
    assert (row["subscriptions"], row["vocabulary"]) == (500, 100)
    assert 0 < row["p50_us"] <= row["p99_us"]


def test_results_are_a_page_too(tmp_path: Path) -> None:
    options = ("--subscriptions", "500", "--vocabulary", "100", "--quick")
    done = mist("bench", "match", *options, "--html", "bench.html", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Matching a message" in done.stdout
    page = (tmp_path / "bench.html").read_text()
    assert page.startswith("<!doctype html>")
    assert "Matching a message" in page
    assert "500 subscriptions" in page
    refused = mist("bench", "match", *options, "--html", "none/bench.html", cwd=tmp_path)
    assert (refused.returncode, refused.stdout) == (2, "")
    text = "--html: none is no directory that can be written"
    assert refused.stderr == f"mist bench match: {text}\n"


@pytest.mark.parametrize(("share", "warned"), [(0.37, True), (0.04, False), (None, False)])
def test_a_busy_machine_is_warned_of_before_anything_is_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, share: float | None, warned: bool
) -> None:
    monkeypatch.setattr("mist.cli.bench.running.busy_share", lambda: share)
    page = tmp_path / "bench.html"
    arguments = ["bench", "match", "--subscriptions", "500", "--vocabulary", "100", "--quick"]
    done = CliRunner().invoke(main, [*arguments, "--json", "--html", str(page)])
    assert done.exit_code == 0
    assert done.stderr.startswith("the machine is busy: 37% of its ") == warned
    assert json.loads(done.stdout)["busy"] == share
    assert ("37% of its " in page.read_text()) == warned


def test_fanout_counts_every_delivery_of_both_transports() -> None:
    options = ["--subscribers", "3", "--messages", "400", "--transport", "tcp"]
    rows = bench("fanout", *options, "--transport", "ws", "--tag-lists", "4")["fanout"]
    assert [row["transport"] for row in rows] == ["tcp", "ws"]
    for row in rows:
        assert set(row) == THROUGHPUT
        assert (row["messages"], row["deliveries"], row["lost"]) == (400, 1200, 0)
        assert (row["repeated"], row["reordered"]) == (0, 0)
        assert row["deliveries_per_second"] > 0


def test_options_before_the_command_are_meant_for_it(process: Process) -> None:
    before = ["--transport", "ws", *given(process), "--secret", "s3cret"]
    rows = bench(*before, "fanout", "--subscribers", "2", "--messages", "50")["fanout"]
    assert [(row["transport"], row["deliveries"]) for row in rows] == [("ws", 100)]


def test_a_running_server_is_measured_with_its_secret_and_left_as_it_was(process: Process) -> None:
    options = ["--publishers", "3", "--messages", "60", *given(process)]
    rows = bench("publish", *options, MIST_SECRET="s3cret")["publish"]
    assert [(row["publishers"], row["messages"]) for row in rows] == [(3, 60)]
    assert mist("list", "--host", process.urls[0], MIST_SECRET="s3cret").stdout == ""


def test_latency_at_a_rate() -> None:
    rows = bench("latency", "--rate", "500", "--messages", "50", "--transport", "tcp")["latency"]
    (row,) = rows
    assert set(row) >= QUANTILES | {f"intended_{name}" for name in QUANTILES}
    assert (row["rate_per_second"], row["messages"], row["lost"]) == (500, 50, 0)
    assert 0 < row["p50_us"] <= row["p90_us"] <= row["p99_us"] <= row["max_us"]
    assert row["p50_us"] <= row["intended_p50_us"]


def test_idle_connections_take_memory() -> None:
    rows = bench("idle", "--connections", "300")["idle"]
    assert [(row["transport"], row["connections"]) for row in rows] == [("tcp", 300), ("ws", 300)]
    if sys.platform == "linux":
        assert all(500 < row["bytes_per_connection"] < 100_000 for row in rows)


def test_a_slow_consumer_loses_messages_and_the_others_none() -> None:
    options = ["--subscribers", "4", "--rate", "200", "--quick"]
    (row,) = bench("slow-consumer", *options)["slow_consumer"]
    assert (row["healthy"], row["healthy_lost"], row["disconnected"]) == (3, 0, 0)
    assert 0 < row["dropped"] < row["sent_to_stalled"]


def test_http_is_measured_with_a_history_and_without() -> None:
    options = ["--requests", "5", "--rounds", "2", "--rate", "1000", "--subscribers", "2"]
    figures = bench("http", "--quick", *options)
    assert set(figures) - {"busy"} == {"python", "processors", "load", *HTTP}
    requests, handshakes, streams = [figures[kind] for kind in HTTP]
    shapes = ("repeated", "unique", "fresh"), ("list", "lines", "lines_unique")
    assert [(row["shape"], row["history"], row["requests"]) for row in requests] == [
        (shape, history, count)
        for some, count in zip(shapes, (10, 2), strict=True)
        for shape in some
        for history in ("none", "sqlite")
    ]
    assert [(row["closed"], row["connects"]) for row in handshakes] == [(False, 10), (True, 10)]
    assert [(row["transport"], row["subscribers"], row["lost"]) for row in streams] == [
        (transport, subscribers, 0)
        for subscribers in (2, 1, 1)
        for transport in ("tcp", "ws", "sse")
    ]
    rates = [(row["rate_per_second"], row["tag_lists"]) for row in streams[::3]]
    assert rates == [(1_000, 1), (None, 1), (None, 5_000)]


def test_http_of_a_running_server(tmp_path: Path) -> None:
    listen = [f"--listen={scheme}://127.0.0.1:0" for scheme in ("tcp", "ws", "http")]
    listen = [word for option in listen for word in option.split("=")]
    options = ["--secret", "s3cret", "--history", "none"]
    with serving(tmp_path, *options, listen=listen) as server:
        figures = bench("http", "--quick", *given(server), MIST_SECRET="s3cret")
        assert {row["history"] for row in figures["http_request"]} == {"none"}
        assert mist("list", "--host", server.urls[0], MIST_SECRET="s3cret").stdout == ""
        missing = ["bench", "http", "--server", server.urls[0], "--secret", "s3cret"]
        done = CliRunner().invoke(main, missing)
        assert (done.exit_code, "no http:// server" in done.output) == (1, True)


def test_a_history_is_measured_in_a_folder_and_gone_from_it(tmp_path: Path) -> None:
    sizes = ["--messages", "10000", "--seconds", "0.01", "--folder", str(tmp_path)]
    figures = bench("history", "--quick", *sizes)
    assert set(figures) - {"busy"} == {"python", "processors", "load", *HISTORY}
    appends, publishes, sizes, replays, searches = [figures[kind] for kind in HISTORY]
    assert {row["durability"] for row in appends} == {"power", "process"}
    assert {row["event_loop"] for row in appends} == {"busy"}
    assert [(row["durability"], row["window_messages"]) for row in publishes] == [
        (durability, window) for window in (0, 500) for durability in (None, "power")
    ]
    assert all(row["lost"] == 0 for row in publishes if row["window_messages"])
    assert [(row["through"], row["messages"]) for row in replays] == [
        ("log", 10_000),
        ("tcp", 10_000),
    ]
    assert [row["matches"] for row in searches] == [1_000, 1_000, 0] * 2
    assert {row["tag_lists"] for row in appends} == {1, 1_000}
    assert [(row["messages"], row["tag_lists"]) for row in sizes] == [(10_000, 1_000)]
    assert not list(tmp_path.iterdir())


def test_a_history_is_measured_with_tag_lists_that_hardly_come_again(tmp_path: Path) -> None:
    sizes = ["--messages", "10000", "--seconds", "0.01", "--folder", str(tmp_path)]
    figures = bench("history", "--quick", "--tag-lists", "15000", *sizes)
    assert {kind: {row["tag_lists"] for row in figures[kind]} for kind in HISTORY} == {
        kind: {15_000} for kind in HISTORY
    }
    assert [row["matches"] for row in figures["history_search"]] == [1_000, 1_000, 0] * 2
    assert not list(tmp_path.iterdir())


def test_an_attack_is_played_beside_a_probe() -> None:
    options = ["--attack", "subscribe", "--rounds", "1", "--seconds", "0.1"]
    rows = bench("fairness", "--quick", *options)["fairness"]
    assert [row["attack"] for row in rows] == ["subscribe", "close"]
    for row in rows:
        assert (row["rounds"], row["finished"], row["unanswered"]) == (1, True, 0)
        assert row["played"] >= 1
        assert 0 < row["quiet_p50_us"] <= row["quiet_p99_us"] <= row["quiet_max_us"]
        assert 0 < row["attacked_p50_us"] <= row["attacked_p99_us"] <= row["attacked_max_us"]
        assert 0 < row["elsewhere_p50_us"] <= row["elsewhere_p99_us"] <= row["elsewhere_max_us"]
        assert row["held_ms"] > 0


def test_tables_are_for_people() -> None:
    done = mist("bench", "fanout", "--subscribers", "2", "--messages", "20")
    assert done.returncode == 0
    assert "1→2" in done.stdout
    assert "nothing" in done.stdout
    assert "…" not in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["fanout", "--publishers", "0"], "--publishers"),
        (["fanout", "--publishers", "63"], "--publishers"),
        (["fanout", "--size", "9"], "--size"),
        (["fanout", "--window", "-1"], "--window"),
        (["fanout", "--transport", "udp"], "--transport"),
        (["publish", "--subscribers", "2"], "--subscribers"),
        (["slow-consumer", "--subscribers", "1"], "--subscribers"),
        (["latency", "--rate", "0"], "--rate"),
        (["latency", "--rate", "10", "--messages", "3001"], "300 s"),
        (["idle", "--pid", "1"], "--server"),
        (["idle", "--server", "tcps://127.0.0.1:1"], "TLS"),
        (["idle", "--server", "http://127.0.0.1:1"], "--server"),
        (["http", "--server", "https://127.0.0.1:1"], "TLS"),
        (["http", "--server", "http://127.0.0.1:1/path"], "--server"),
        (["http", "--server", "http://127.0.0.1:99999"], "--server"),
        (["http", "--transport", "ws"], "--transport"),
        (["--transport", "ws", "http"], "--transport is not for http"),
        (["idle", "--server", "tcp://127.0.0.1:1", "--server", "tcp://127.0.0.1:2"], "two tcp"),
        (["match", "--subscriptions", "0"], "--subscriptions"),
        (["--transport", "ws", "match"], "--transport is not for match"),
        (["--server", "tcp://127.0.0.1:1", "history"], "--server is not for history"),
        (["history", "--messages", "9999"], "--messages"),
        (["history", "--seconds", "0"], "--seconds"),
        (["history", "--tag-lists", "0"], "--tag-lists"),
        (["history", "--tag-lists", "1000001"], "--tag-lists"),
        (["history", "--folder", "/no/such/folder"], "--folder"),
        (["history", "--server", "tcp://127.0.0.1:1"], "--server"),
        (["fairness", "--attack", "bogus"], "--attack"),
        (["fairness", "--server", "tcp://127.0.0.1:1"], "--server"),
        (["nodes", "--engine", "bogus"], "--engine"),
        (["nodes", "--server", "tcp://127.0.0.1:1"], "--server"),
        (["pipeline", "--job", "bogus"], "--job"),
        (["pipeline", "--rounds", "0"], "--rounds"),
        (["bogus"], "bogus"),
    ],
)
def test_a_wrong_wish_is_named(arguments: list[str], words: str) -> None:
    done = CliRunner().invoke(main, ["bench", *arguments])
    assert done.exit_code == 2
    assert words in done.output


def test_what_can_not_be_measured_is_said(process: Process) -> None:
    tcp, ws = process.urls
    fanout = ["fanout", "--server", tcp, "--server", ws, "--transport", "ws"]
    for arguments, code, words in (
        (["publish", "--server", "tcp://127.0.0.1:1"], 3, "refused"),
        (["publish", "--server", tcp], 1, "Unauthorized"),
        (["fanout", "--server", ws, "--transport", "ws"], 1, "tcp://"),
        (["fanout", "--server", tcp, "--transport", "ws", "--secret", "s3cret"], 1, "ws://"),
        (["idle", "--server", tcp, "--secret", "s3cret", "--transport", "tcp"], 1, "process"),
        ([*fanout, "--token", "wrong", "--secret", "s3cret"], 1, "401"),
        (["match", "--subscriptions", "7000", "--vocabulary", "20"], 1, "7,000"),
    ):
        done = CliRunner().invoke(main, ["bench", *arguments])
        assert (done.exit_code, words in done.output) == (code, True), done.output


@pytest.mark.skipif(sys.platform != "linux", reason="finds the server's process in /proc")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_benchmark_leaves_no_server(number: int, code: int) -> None:
    arguments = ["bench", "latency", "--rate", "100", "--messages", "3000"]
    with subprocess.Popen(
        [sys.executable, "-m", "mist", *arguments], env=environment(), stdout=subprocess.PIPE
    ) as popen:
        try:
            while not (servers := servers_of(popen.pid)):
                assert popen.poll() is None
                time.sleep(0.01)
            popen.send_signal(number)
            assert popen.wait(20) == code
        finally:
            popen.kill()
    for pid in servers:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_history_leaves_no_file(tmp_path: Path, number: int, code: int) -> None:
    arguments = ["bench", "history", "--seconds", "60", "--folder", str(tmp_path)]
    with subprocess.Popen(
        [sys.executable, "-m", "mist", *arguments], env=environment(), stdout=subprocess.PIPE
    ) as popen:
        try:
            while not list(tmp_path.glob("*/history.db-wal")):  # it is appending
                assert popen.poll() is None
                time.sleep(0.01)
            popen.send_signal(number)
            assert popen.wait(20) == code
        finally:
            popen.kill()
    assert not list(tmp_path.iterdir())


def servers_of(pid: int) -> list[int]:
    """A process's children that are `mist serve`."""
    found = []
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        with suppress(FileNotFoundError, ProcessLookupError):  # one that has ended meanwhile
            if b"\0serve\0" in Path(f"/proc/{child}/cmdline").read_bytes():
                found.append(int(child))
    return found


def test_of_a_given_server_is_measured_what_can_be(process: Process) -> None:
    figures = bench("--quick", "--server", process.urls[0], "--secret", "s3cret")
    assert not {"idle", "history_publish", *HTTP} & set(figures)
    served = [row for kind in ("publish", "fanout", "latency") for row in figures[kind]]
    assert {row["transport"] for row in served} == {"tcp"}
    assert all(row["server_cpu_seconds"] is None for row in served)


def test_everything_fits_into_a_quick_run() -> None:
    figures = bench("--quick")
    kinds = {"match", "publish", "fanout", "latency", "idle", "slow_consumer", "history_publish"}
    assert set(figures) == kinds | set(HTTP) | {"python", "processors", "load", "busy"}
    assert all(row["lost"] == 0 for kind in ("publish", "fanout") for row in figures[kind])
    shapes = {(row["publishers"], row["subscribers"]) for row in figures["fanout"]}
    assert shapes == {(1, 1), (1, 10), (1, 100), (10, 10)}


def test_nodes_without_an_engine_are_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    done = CliRunner().invoke(main, ["bench", "nodes", "--engine", "redis"])
    assert (done.exit_code, "no redis-server on the PATH" in done.output) == (1, True)


def test_interrupted_nodes_leave_no_engine(tmp_path: Path) -> None:
    find_redis("system")
    arguments = ["bench", "nodes", "--engine", "redis", "--folder", str(tmp_path)]
    with subprocess.Popen(
        [sys.executable, "-m", "mist", *arguments], env=environment(), stderr=subprocess.PIPE
    ) as popen:
        try:
            assert popen.stderr is not None
            lines = iter(popen.stderr.readline, b"")
            told = next(line for line in lines if not line.startswith(b"the machine is busy"))
            assert told == b"redis everysec: idle node\n"
            (configuration,) = tmp_path.glob("*/redis.conf")
            port = int(configuration.read_text().split()[3])
            socket.create_connection(("127.0.0.1", port)).close()
            popen.send_signal(signal.SIGTERM)
            assert popen.wait(20) == 143
        finally:
            popen.kill()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))
    assert not list(tmp_path.iterdir())
