"""Says where this module is now."""

raise ImportError("rolecall.engines.parts is now rolecall.engines.inputs")
