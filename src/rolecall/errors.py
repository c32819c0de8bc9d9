"""Says where this module is now."""

raise ImportError("rolecall.errors is now rolecall.core.errors")
