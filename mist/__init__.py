"""mist: a tag-based publish/subscribe service."""

__version__ = "0.1.0"
