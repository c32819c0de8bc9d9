"""Says where this module is now."""

raise ImportError("rolecall.api is now rolecall.runs.api")
