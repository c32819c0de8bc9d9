"""Says where a price of a config has no effect."""

from __future__ import annotations

from rolecall.config.schema import Config
from rolecall.config.served import OpenAIEngineConfig
from rolecall.core.errors import nearest
from rolecall.setup.validate_options import Problems


def check_prices(config: Config) -> Problems:
    """Each price is one of a policy, and stands in one place."""
    for name, price in config.prices.items():
        if name not in config.policies:
            near = nearest(name, list(config.policies))
            yield f"prices.{name}: there is no policy {name!r}; {near}"
        elif isinstance(config.get_engine(name), OpenAIEngineConfig):
            yield (
                f"prices.{name}: engine openai has prices of its own, which its budget counts "
                "with; write usd_per_million_input and usd_per_million_output there instead"
            )
        elif not (price.prompt or price.completion):
            yield f"prices.{name} has no effect: it names no price; write prompt and completion"
