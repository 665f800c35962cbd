"""Existing counts as metric families of `prometheus_client`.

Nothing is counted for this alone: a collector reads the hub's counts and its session aggregates
and makes metric families of them. It has a registry of its own, so that several servers in one
process are independent. Durations are histograms, never quantiles, since quantiles of several
servers can't be added up.

Imported with the first page, by `metrics`: the library brings an HTTP server of its own, URLs and
mail, 2 MiB in an empty server.
"""

import itertools
import math
import platform
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from mist.auth.limits import LIMITS
from mist.broker.meters import Histogram
from mist.broker.projection import COMPILED
from mist.http.session_aggregates import SessionAggregates
from mist.sessions.authenticating import Credential
from mist.sessions.hub import Hub
from mist.sessions.readiness import not_ready
from mist.version import __version__

__all__ = ["MetricFamilies"]

# Series that exist from the start: Prometheus sees no increase where a series begins with 1.
_DROPS: Final = ("full", "unframable", "gone", "error")
_FAILURES: Final = (
    *("append", "callback", "delivery", "flush", "observer", "request", "session", "task"),
)
_REASONS: Final = (*(each.value for each in Credential), "ticket", "other")
_WATCHES: Final = ("not_granted", "presence_off", "too_many_watches")
_RECOVERIES: Final = ("recovered", "lost", "failed")


def _of_credentials(hub: Hub) -> Metric:
    made = CounterMetricFamily(
        "mist_auth",
        "Credentials that were issued elsewhere, and what was asked for them, by outcome.",
        labels=["kind", "outcome"],
    )
    counts = [authority.counts for authority in hub.credentials.authorities]
    if hub.subscription_callout is not None:
        counts.append(hub.subscription_callout.counts)
    for kind, outcomes in itertools.chain(*(each.items() for each in counts)):
        for outcome, count in outcomes.items():
            made.add_metric([kind, outcome], count)
    return made


class MetricFamilies(Collector):
    """Makes the page of a server's metrics."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._session_aggregates: SessionAggregates | None = None
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def render(self, session_aggregates: SessionAggregates) -> bytes:
        """The page, with these of the sessions."""
        self._session_aggregates = session_aggregates
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Every family, once."""
        if self._session_aggregates is None:
            return
        yield from self._of_connections(self._session_aggregates)
        yield from self._of_messages(self._session_aggregates)
        yield from self._of_history()
        yield from self._of_engine()
        yield from self._of_archive()
        yield from self._of_presence()
        yield from self._of_events()
        yield _histogram(
            "mist_event_loop_lag_seconds",
            "Event loop lag: how late a timer fires, measured four times a second.",
            self._hub.meters.loop_lag,
        )
        yield GaugeMetricFamily(
            "mist_ready", "1 where /readyz says 200, else 0.", int(not_ready(self._hub) is None)
        )
        certificate = self._hub.certificate
        if certificate is not None and math.isfinite(certificate.ends):
            yield GaugeMetricFamily(
                "mist_certificate_expiry_timestamp_seconds",
                "When the certificate of TLS listeners ends, Unix time.",
                certificate.ends,
            )
        about = {
            "version": __version__,
            "python": platform.python_version(),
            "compiled": "yes" if COMPILED else "no",
        }
        info = GaugeMetricFamily("mist_build_info", "Always 1; see its labels.", labels=list(about))
        info.add_metric(list(about.values()), 1)
        yield info

    def _of_connections(self, session_aggregates: SessionAggregates) -> Iterator[Metric]:
        hub = self._hub
        served = {*hub.sessions.transports, *hub.sessions.accepted}
        transports = sorted({*served, *session_aggregates.connections})
        yield _gauge(
            "mist_connections",
            "Sessions now.",
            "transport",
            {name: session_aggregates.connections.get(name, 0) for name in transports},
        )
        opened = CounterMetricFamily(
            "mist_connections",
            "Sessions accepted, and connections refused by a limit.",
            labels=["transport", "result"],
        )
        for name in sorted({*served, *hub.sessions.refused}):
            opened.add_metric([name, "accepted"], hub.sessions.accepted[name])
            opened.add_metric([name, "refused"], hub.sessions.refused[name])
        yield opened
        codes = {str(code): count for code, count in hub.sessions.close_codes.items()}
        yield _counter("mist_disconnects", "Sessions that ended, by close code.", "code", codes)
        reasons = dict.fromkeys(_REASONS, 0) | hub.failed_auth_reasons
        reasons["other"] = max(0, hub.failed_auths.total() - sum(reasons.values()))
        yield _counter("mist_auth_failures", "Invalid credentials, by kind.", "reason", reasons)
        yield _counter(
            "mist_token_refusals",
            "Requests and connections beyond the limits of a token, by limit.",
            "limit",
            dict.fromkeys(sorted(LIMITS), 0) | hub.token_limits.refusals,
        )
        if hub.credentials.issued or hub.subscription_callout is not None:
            yield _of_credentials(hub)
        recoveries = dict.fromkeys(_RECOVERIES, 0) | hub.recoveries
        yield _counter(
            "mist_recover",
            "Recoveries from the history, by result; lost: part of it was no longer available.",
            "result",
            recoveries,
        )
        yield GaugeMetricFamily(
            "mist_subscriptions", "Subscriptions of all sessions.", session_aggregates.subscriptions
        )

    def _of_messages(self, session_aggregates: SessionAggregates) -> Iterator[Metric]:
        broker, sessions = self._hub.broker.statistics(), self._hub.sessions
        yield GaugeMetricFamily("mist_tags", "Distinct tags subscribed to.", broker.tags)
        by_peers = broker.published_by_peers
        yield _counter(
            "mist_messages_published",
            "Messages accepted: over TCP, or over HTTP and from inside the process (other).",
            "source",
            {"tcp": by_peers, "other": broker.published - by_peers},
        )
        yield CounterMetricFamily(
            "mist_messages_matched",
            "Deliveries due: messages, times those who were subscribed to each.",
            broker.matched,
        )
        yield CounterMetricFamily(
            "mist_messages_replayed",
            "Messages given to sessions from the history, beside the deliveries due.",
            broker.replayed,
        )
        yield GaugeMetricFamily(
            "mist_messages_queued",
            "Messages waiting for sessions: queued, or left to the history while one is behind.",
            session_aggregates.queued,
        )
        yield _counter(
            "mist_messages_delivered",
            "Messages wholly handed to the kernel.",
            "transport",
            dict.fromkeys({*sessions.transports, *sessions.accepted}, 0)
            | session_aggregates.delivered,
        )
        yield _counter(
            "mist_messages_dropped",
            "Messages not delivered: the queue was full, the protocol can't carry the data, the "
            "session had gone, or an error of the server's own.",
            "reason",
            dict.fromkeys(_DROPS, 0) | broker.dropped,
        )
        yield _counter(
            "mist_contained_failures",
            "Errors of the server's own that cost one delivery, callback, session or request; see "
            "the log.",
            "what",
            dict.fromkeys(_FAILURES, 0) | broker.failures,
        )
        yield GaugeMetricFamily(
            "mist_outbox_bytes", "Bytes queued for all peers.", session_aggregates.queued_bytes
        )
        meters = self._hub.meters
        yield _histogram(
            "mist_publish_to_write_seconds",
            "From a message's arrival to the end of the flush that wrote it; sampled.",
            meters.publish_to_write,
        )
        yield _histogram(
            "mist_match_seconds",
            "Matching a tag list that was not cached; sampled.",
            meters.match,
        )

    def _of_history(self) -> Iterator[Metric]:
        sequencer = self._hub.sequencer
        if sequencer is None:
            return
        yield GaugeMetricFamily(
            "mist_history_position", "Id of the newest message delivered.", sequencer.newest
        )
        yield _histogram(
            "mist_history_commit_seconds",
            "Group commit: storing one group of messages.",
            self._hub.meters.commit,
        )

    def _of_engine(self) -> Iterator[Metric]:
        nodes, sequencer = self._hub.nodes, self._hub.sequencer
        if nodes is None or sequencer is None:
            return
        yield GaugeMetricFamily(
            "mist_engine_members", "Nodes that act as one, this one among them.", nodes.known
        )
        yield CounterMetricFamily(
            "mist_engine_messages",
            "Messages that other nodes have accepted.",
            self._hub.broker.statistics().relayed,
        )
        yield CounterMetricFamily(
            "mist_engine_lost_messages",
            "Ids of messages that this node had, and the engine has lost.",
            nodes.lost,
        )
        yield GaugeMetricFamily(
            "mist_engine_lag_seconds",
            "By how much this node is behind the engine's log, by the engine's clock.",
            sequencer.lag,
        )
        yield _histogram(
            "mist_engine_append_seconds",
            "Appending one record to the engine's log, retries included.",
            self._hub.meters.append,
        )

    def _of_archive(self) -> Iterator[Metric]:
        sealer = self._hub.sealer
        if sealer is None:
            return
        yield GaugeMetricFamily(
            "mist_archive_position", "Id up to which messages are in the archive.", sealer.sealed
        )
        yield GaugeMetricFamily(
            "mist_archive_segments", "Files of the archive.", len(sealer.manifest.segments)
        )
        yield GaugeMetricFamily(
            "mist_archive_sealing",
            "Whether it is this server that seals the archive; of nodes, one at a time does.",
            int(sealer.sealing),
        )
        yield CounterMetricFamily(
            "mist_archive_failures", "Failed attempts to seal.", sealer.failures
        )

    def _of_presence(self) -> Iterator[Metric]:
        presence = self._hub.presence
        if presence is None:
            return
        yield GaugeMetricFamily(
            "mist_presence_watches", "Tag sets whose presence sessions watch.", presence.watches
        )
        yield CounterMetricFamily(
            "mist_presence_notices", "Notices of presence, one for each watcher.", presence.told
        )
        refused = dict.fromkeys(_WATCHES, 0) | presence.refused | {"revoked": presence.ended}
        yield _counter(
            "mist_presence_refused",
            "Questions for presence that were refused, and watches that ended with a right.",
            "reason",
            refused,
        )

    def _of_events(self) -> Iterator[Metric]:
        events = self._hub.events
        if events is None:
            return
        yield CounterMetricFamily(
            "mist_events", "Events published as messages for services.", events.published
        )
        yield _counter(
            "mist_events_dropped",
            "Events for which there was no room, as messages or for a hook.",
            "what",
            dict.fromkeys(("message", "hook"), 0) | events.dropped,
        )
        yield CounterMetricFamily(
            "mist_events_refused", "Attempts to store events that failed.", events.refused
        )
        yield CounterMetricFamily("mist_hook_failures", "Hooks that raised.", events.failed)


def _gauge(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=[label])
    return _filled(family, values)


def _counter(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    family = CounterMetricFamily(name, text, labels=[label])
    return _filled(family, values)


def _filled(family: GaugeMetricFamily | CounterMetricFamily, values: Mapping[str, float]) -> Metric:
    for value, count in sorted(values.items()):
        family.add_metric([value], count)
    return family


def _histogram(name: str, text: str, histogram: Histogram) -> Metric:
    return HistogramMetricFamily(
        name, text, buckets=list(_buckets(histogram)), sum_value=histogram.total
    )


def _buckets(histogram: Histogram) -> Iterable[tuple[str, float]]:
    count = 0
    for bound, more in zip((*histogram.bounds, "+Inf"), histogram.counts, strict=True):
        count += more
        yield str(bound), count
