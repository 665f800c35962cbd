"""Figures as rows: flat, with stable keys and the unit in the name.

A row is what `mist bench --json` prints one list of for each kind. Keys are only ever added.

match           subscriptions, vocabulary, width (fewest and most tags of a message), p50_us,
                p99_us, memo_ns, matches, add_us, remove_us
publish, fanout transport, publishers, subscribers, size_bytes, tag_lists, window_messages (0:
                unthrottled), messages, deliveries, lost, repeated, reordered, seconds,
                messages_per_second, deliveries_per_second, server_cpu_seconds,
                server_cpu_seconds_per_million_messages,
                server_cpu_seconds_per_million_deliveries, driver_cpu_seconds
latency         transport, subscribers, size_bytes, rate_per_second, messages, lost, p50_us,
                p90_us, p99_us, max_us, and the same as intended_…, server_cpu_seconds,
                server_cpu_seconds_per_million_messages, driver_cpu_seconds
idle            transport, connections, bytes_per_connection
slow_consumer   transport, healthy, rate_per_second, without_stalled_p50_us (p90, p99, max),
                with_stalled_p50_us (p90, p99, max), healthy_lost, sent_to_stalled, dropped,
                disconnected
http_request    transport (http), shape (repeated, unique, fresh, list, lines, lines_unique; see
                `mist.bench.http.requests`), messages_per_request, history (none, sqlite, unknown),
                durability, file_system, size_bytes, requests, rounds, requests_per_second,
                server_cpu_us_per_request, lowest_server_cpu_us_per_request,
                highest_server_cpu_us_per_request, driver_cpu_us_per_request
ws_connect      transport, closed (whether each is closed before the next), connects, rounds,
                connects_per_second, server_cpu_us_per_connect, lowest_server_cpu_us_per_connect,
                highest_server_cpu_us_per_connect, driver_cpu_us_per_connect
http_stream     transport (tcp, ws, sse), subscribers, rate_per_second (null: as fast as a window
                of 500 messages allows), tag_lists, size_bytes, messages, rounds, lost,
                server_cpu_us_per_delivery (with its share of publishing), over_tcp_us (that much
                more than a delivery over TCP), times_ws (a WebSocket's), alone_us_per_delivery
                (without what publishing to nobody costs), alone_times_ws
history_append  durability, file_system, event_loop (busy, idle), group_messages, tag_lists,
                size_bytes, appends, messages_per_second, slowest_ms, bare_messages_per_second,
                bare_slowest_ms, share (of the bare rate)
history_publish transport, history (none, sqlite), durability, file_system, publishers,
                subscribers, size_bytes, tag_lists, window_messages, messages, deliveries, lost,
                repeated, reordered, seconds, rounds, messages_per_second (the median round's),
                lowest_messages_per_second, highest_messages_per_second, server_cpu_seconds,
                server_cpu_seconds_per_million_messages,
                housekeeping_cpu_seconds_per_million_messages, driver_cpu_seconds
history_size    file_system, tag_lists, size_bytes, messages, file_bytes_per_message (of the log's
                file after all maintenance), bare_file_bytes_per_message (of a SQLite table with a
                row a message), times (the bare one's)
history_replay  through (log, tcp), file_system, tag_lists, size_bytes, messages, replays,
                messages_per_second, first_ms, stored_bytes_per_message,
                server_cpu_seconds_per_million_messages
history_search  through, file_system, event_loop, messages, tag_lists (of those that don't match),
                where (spread, at the end, nowhere), matches, searches, first_ms, slowest_first_ms,
                all_ms, us_per_match (all_ms by matches; null where there are none)
fairness        attack, about, rounds, played (times, in all rounds), refused, finished (whether the
                server got through with it), quiet_p50_us (p99, max), elsewhere_p50_us (p99, max;
                on another server, meanwhile), attacked_p50_us (p99, max), times_p99 (attacked by
                elsewhere, the median round's), lowest_times_p99, highest_times_p99,
                http_quiet_p50_us (p99, max), http_elsewhere_p50_us (p99, max),
                http_attacked_p50_us (p99, max), unanswered, hung_up
                (requests of the probe), quiet_held_ms, held_ms (CPU of the longest pass of the
                event loop), seconds (the median attacked phase's), server_cpu_seconds (of all
                attacked phases), late_p50_us (p99, max; the probe itself)
nodes           engine (redis, postgres), setting (of its durability: everysec, always, on), figure,
                unit, rounds, median, lowest, highest (null: not measured, and the note says why),
                asked_at_least, asked_at_most (null: nothing is asked), note
pipeline        job (match, match_hard, match_one_core, rollup, rollup_hard, rollup_small, compact,
                stream, cluster_match, cluster_rollup, cluster_compact), messages, subscriptions,
                seconds, messages_per_second, cpu_seconds_per_million_messages (of all processes
                that take part), server_cpu_seconds_per_million_messages (of these), plain_messages,
                plain_seconds, plain_messages_per_second, plain_cpu_seconds_per_million_messages
                (of plain DataFrame code), times, cpu_times (that of the plain form, for the
                same messages), must, aim
                (messages or times, as asked for)

Server CPU is null where the process isn't known, or the system doesn't tell; so is a file
system. Rates and times of a history are medians, but for those called lowest, highest, slowest.
"""

import statistics
from typing import Any, assert_never

import attrs

from mist.bench.fairness.unfairness import Unfairness
from mist.bench.history.appends import Appends
from mist.bench.history.publishing import Publishing
from mist.bench.history.replay import Replay
from mist.bench.history.search import Search
from mist.bench.history.size import FileSize
from mist.bench.http.handshakes import Handshakes
from mist.bench.http.requests import Requests
from mist.bench.http.rounds import Rounds
from mist.bench.http.streams import Streams
from mist.bench.idle import Idle
from mist.bench.latency import Latency, Quantiles
from mist.bench.load import Run
from mist.bench.match import Matched
from mist.bench.nodes.figure import NodesFigure
from mist.bench.pipeline.figure import Figure
from mist.bench.slow_consumer import SlowConsumer
from mist.bench.throughput import Throughput

__all__ = ["Result", "Row", "row_of"]

Served = Throughput | Latency | Idle | SlowConsumer
Kept = Appends | Publishing | Replay | FileSize | Search
Http = Requests | Handshakes | Streams
Result = Matched | Served | Http | Kept | Unfairness | NodesFigure | Figure
Row = dict[str, Any]


def row_of(result: Result) -> Row:
    """A result as a flat row; without `transport`, which it doesn't know."""
    match result:
        case Matched() | Idle():
            return attrs.asdict(result)
        case Throughput(run=run):
            shape = attrs.asdict(result, filter=lambda field, _: field.name != "run")
            return shape | _counts(run) | _rates(run) | _costs(run)
        case Latency(run=run):
            costs = _costs(run)
            del costs["server_cpu_seconds_per_million_deliveries"]
            return {
                "subscribers": result.subscribers,
                "size_bytes": result.size_bytes,
                "rate_per_second": result.rate,
                "messages": run.messages,
                "lost": run.lost,
                **attrs.asdict(result.written),
                **_prefixed("intended_", result.intended),
                **costs,
            }
        case SlowConsumer():
            return {
                "healthy": result.healthy,
                "rate_per_second": result.rate,
                **_prefixed("without_stalled_", result.without_stalled),
                **_prefixed("with_stalled_", result.with_stalled),
                "healthy_lost": result.healthy_lost,
                "sent_to_stalled": result.sent_to_stalled,
                "dropped": result.dropped,
                "disconnected": result.disconnected,
            }
        case Requests() | Handshakes() | Streams():
            return _http(result)
        case Appends() | Publishing() | Replay() | FileSize() | Search():
            return _kept(result)
        case Unfairness():
            return _fairness(result)
        case NodesFigure():
            return _nodes(result)
        case Figure():
            return {
                "job": result.name,
                "messages": result.messages,
                "subscriptions": result.subscriptions,
                "seconds": result.took.seconds,
                "messages_per_second": result.rate,
                "cpu_seconds_per_million_messages": result.cpu,
                "server_cpu_seconds_per_million_messages": result.server_cpu,
                "plain_messages": result.plain_messages,
                "plain_seconds": result.plain.seconds if result.plain else None,
                "plain_messages_per_second": result.plain_rate,
                "plain_cpu_seconds_per_million_messages": result.plain_cpu,
                "times": result.times,
                "cpu_times": result.cpu_times,
                "must": result.must,
                "aim": result.aim,
            }
        case _:
            assert_never(result)


def _http(result: Http) -> Row:
    """Of requests, handshakes and event streams."""
    match result:
        case Requests(rounds=rounds):
            return {
                "shape": result.shape,
                "messages_per_request": result.messages,
                "history": result.history,
                "durability": result.durability,
                "file_system": result.file_system,
                "size_bytes": result.size,
                "requests": rounds.count,
                "rounds": len(rounds.rounds),
                "requests_per_second": rounds.per_second,
                **_each(rounds, "request"),
            }
        case Handshakes(rounds=rounds):
            return {
                "closed": result.closed,
                "connects": rounds.count,
                "rounds": len(rounds.rounds),
                "connects_per_second": rounds.per_second,
                **_each(rounds, "connect"),
            }
        case Streams(runs=runs):
            return {
                "transport": result.transport,
                "subscribers": result.subscribers,
                "rate_per_second": result.rate,
                "tag_lists": result.tag_lists,
                "size_bytes": result.size,
                "messages": sum(run.messages for run in runs),
                "rounds": len(runs),
                "lost": sum(run.lost for run in runs),
                "server_cpu_us_per_delivery": result.cpu_us,
                "over_tcp_us": result.over_tcp_us,
                "times_ws": result.times_ws,
                "alone_us_per_delivery": result.alone_us,
                "alone_times_ws": result.alone_times_ws,
            }
        case _:
            assert_never(result)


def _each(rounds: Rounds, unit: str) -> Row:
    """What one of them costs, in microseconds."""
    server = rounds.server_cpu_us
    return {
        f"server_cpu_us_per_{unit}": statistics.median(server) if server else None,
        f"lowest_server_cpu_us_per_{unit}": min(server, default=None),
        f"highest_server_cpu_us_per_{unit}": max(server, default=None),
        f"driver_cpu_us_per_{unit}": rounds.driver_cpu_us,
    }


def _kept(result: Kept) -> Row:
    """Of the history."""
    match result:
        case Appends():
            return {
                "durability": result.durability.value,
                "file_system": result.file_system,
                "event_loop": _loop(busy=result.busy),
                "group_messages": result.group,
                "tag_lists": result.tag_lists,
                "size_bytes": result.size,
                "appends": len(result.ours),
                "messages_per_second": result.messages_per_second,
                "slowest_ms": _ms(max(result.ours)),
                "bare_messages_per_second": result.bare_messages_per_second,
                "bare_slowest_ms": _ms(max(result.bare)),
                "share": result.messages_per_second / result.bare_messages_per_second,
            }
        case Publishing(total=total):
            kept = result.durability != "none"
            housekeeping = attrs.evolve(total, server_cpu=result.housekeeping)
            costs = _costs(total)
            del costs["server_cpu_seconds_per_million_deliveries"]
            return {
                "transport": "tcp",
                "history": "sqlite" if kept else "none",
                "durability": result.durability if kept else None,
                "file_system": result.file_system,
                "publishers": 1,
                "subscribers": 1,
                "size_bytes": result.size,
                "tag_lists": result.tag_lists,
                "window_messages": result.window,
                **_counts(total),
                "rounds": len(result.runs),
                "messages_per_second": result.messages_per_second,
                "lowest_messages_per_second": min(result.rates),
                "highest_messages_per_second": max(result.rates),
                **costs,
                "housekeeping_cpu_seconds_per_million_messages": (
                    housekeeping.cpu_per_million_messages
                ),
            }
        case Replay():
            count = result.messages * len(result.seconds)
            cpu = None if result.server_cpu is None else result.server_cpu * 1e6 / count
            return {
                "through": result.through,
                "file_system": result.file_system,
                "tag_lists": result.tag_lists,
                "size_bytes": result.size,
                "messages": result.messages,
                "replays": len(result.seconds),
                "messages_per_second": result.messages_per_second,
                "first_ms": _ms(statistics.median(result.firsts)),
                "stored_bytes_per_message": result.stored,
                "server_cpu_seconds_per_million_messages": cpu,
            }
        case FileSize():
            return {
                "file_system": result.file_system,
                "tag_lists": result.tag_lists,
                "size_bytes": result.size,
                "messages": result.messages,
                "file_bytes_per_message": result.ours / result.messages,
                "bare_file_bytes_per_message": result.bare / result.messages,
                "times": result.times,
            }
        case Search():
            return {
                "through": result.through,
                "file_system": result.file_system,
                "event_loop": _loop(busy=result.busy),
                "messages": result.messages,
                "tag_lists": result.tag_lists,
                "where": result.where,
                "matches": result.matches,
                "searches": len(result.seconds),
                "first_ms": _ms(result.first),
                "slowest_first_ms": _ms(max(result.firsts)),
                "all_ms": _ms(result.all),
                "us_per_match": None if result.each is None else result.each * 1e6,
            }
        case _:
            assert_never(result)


def _fairness(result: Unfairness) -> Row:
    quiet, attacked = [list(phases) for phases in zip(*result.rounds, strict=True)]
    cpu = [phase.server_cpu for phase in attacked]
    return {
        "attack": result.attack,
        "about": result.about,
        "rounds": len(attacked),
        "played": sum(phase.played for phase in attacked),
        "refused": sum(phase.refused for phase in attacked),
        "finished": result.finished,
        **_prefixed("quiet_", result.quiet),
        **_prefixed("elsewhere_", result.elsewhere),
        **_prefixed("attacked_", result.attacked),
        "times_p99": statistics.median(result.times),
        "lowest_times_p99": min(result.times),
        "highest_times_p99": max(result.times),
        **_prefixed("http_quiet_", result.http_quiet),
        **_prefixed("http_elsewhere_", result.http_elsewhere),
        **_prefixed("http_attacked_", result.http_attacked),
        "unanswered": sum(phase.waits.unanswered for phase in attacked),
        "hung_up": sum(phase.waits.hung_up for phase in attacked),
        "quiet_held_ms": _ms(max(phase.held for phase in quiet)),
        "held_ms": _ms(max(phase.held for phase in attacked)),
        "seconds": statistics.median(phase.seconds for phase in attacked),
        "server_cpu_seconds": None if None in cpu else sum(filter(None, cpu)),
        **_prefixed("late_", result.late),
    }


def _nodes(result: NodesFigure) -> Row:
    measured, asked = result.measured, result.asked
    values = measured.values
    return {
        "engine": result.engine,
        "setting": result.setting,
        "figure": measured.name,
        "unit": measured.unit,
        "rounds": len(values),
        "median": statistics.median(values) if values else None,
        "lowest": min(values, default=None),
        "highest": max(values, default=None),
        "asked_at_least": asked.at_least,
        "asked_at_most": asked.at_most,
        "note": measured.note,
    }


def _loop(*, busy: bool) -> str:
    return "busy" if busy else "idle"


def _ms(seconds: float) -> float:
    return seconds * 1e3


def _counts(run: Run) -> Row:
    names = ("messages", "deliveries", "lost", "repeated", "reordered", "seconds")
    return {name: getattr(run, name) for name in names}


def _rates(run: Run) -> Row:
    return {
        "messages_per_second": run.messages / run.seconds,
        "deliveries_per_second": run.deliveries / run.seconds,
    }


def _costs(run: Run) -> Row:
    return {
        "server_cpu_seconds": run.server_cpu,
        "server_cpu_seconds_per_million_messages": run.cpu_per_million_messages,
        "server_cpu_seconds_per_million_deliveries": run.cpu_per_million_deliveries,
        "driver_cpu_seconds": run.driver_cpu,
    }


def _prefixed(prefix: str, quantiles: Quantiles) -> Row:
    return {prefix + key: value for key, value in attrs.asdict(quantiles).items()}
