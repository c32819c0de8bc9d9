"""Says what tokens of each policy cost."""

from __future__ import annotations

from rolecall.config.schema import Config
from rolecall.runtime.spending import Prices


def find_prices(config: Config) -> dict[str, Prices]:
    """Return the known prices by policy."""
    return {
        name: Prices(price.prompt, price.cached, price.completion)
        for name, price in config.prices.items()
    }
