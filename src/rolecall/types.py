"""Says where this module is now."""

raise ImportError("rolecall.types is now rolecall.core.types")
