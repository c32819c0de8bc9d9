"""Says where this module is now."""

raise ImportError("rolecall.critics.parts is now rolecall.critics.inputs")
