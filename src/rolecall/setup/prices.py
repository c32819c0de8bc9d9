"""Says where a price of a config has no effect."""

from __future__ import annotations

from rolecall.config.schema import Config
from rolecall.core.errors import nearest
from rolecall.setup.validate_options import Problems


def check_prices(config: Config) -> Problems:
    """Check that each price is of a policy."""
    for name, price in config.prices.items():
        if name not in config.policies:
            near = nearest(name, list(config.policies))
            yield f"prices.{name}: there is no policy {name!r}; {near}"
        elif not (price.prompt or price.completion):
            yield f"prices.{name} has no effect: it names no price; write prompt and completion"
