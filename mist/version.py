"""Which version of mist this is; pyproject.toml says the same for packaging."""

from typing import Final

__all__ = ["__version__"]

__version__: Final = "0.1.0"
