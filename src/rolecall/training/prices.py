"""Says what tokens of each policy cost: as `prices` has it, or the engine that is paid for."""

from __future__ import annotations

from rolecall.config.schema import Config
from rolecall.config.served import OpenAIEngineConfig
from rolecall.runtime.spending import Prices


def policy_prices(config: Config) -> dict[str, Prices]:
    """Return the known prices, by policy."""
    prices = {
        name: Prices(prompt=price.prompt, completion=price.completion)
        for name, price in config.prices.items()
    }
    for name in config.policies:
        engine = config.get_engine(name)
        if isinstance(engine, OpenAIEngineConfig) and _is_priced(engine):
            prices[name] = Prices(
                engine.usd_per_million_input,
                engine.usd_per_million_cached,
                engine.usd_per_million_output,
            )
    return prices


def _is_priced(engine: OpenAIEngineConfig) -> bool:
    return bool(engine.usd_per_million_input or engine.usd_per_million_output)
