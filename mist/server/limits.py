"""A server's limits, as its settings say them."""

from mist.broker.outbox_limits import OutboxLimits, SlowConsumer
from mist.config import Config
from mist.sessions.hub import HubLimits

__all__ = ["hub_limits", "outbox_limits"]


def outbox_limits(config: Config) -> OutboxLimits:
    """Those of what is queued for one peer."""
    return OutboxLimits(
        config.outbox_bytes, config.outbox_messages, SlowConsumer(config.slow_consumer)
    )


def hub_limits(config: Config) -> HubLimits:
    """Those of sessions."""
    return HubLimits(
        subscriptions=config.max_subscriptions,
        token_subscriptions=config.max_token_subscriptions,
        strict_grants=config.token_policy == "strict",
        unauthenticated=config.max_unauthenticated,
    )
