"""Says where this module is now."""

raise ImportError("rolecall.trained_team is now rolecall.runs.trained_team")
