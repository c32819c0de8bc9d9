"""Says where this module is now."""

raise ImportError("rolecall.interfaces is now rolecall.core.interfaces")
