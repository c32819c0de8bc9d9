"""Says where this module is now."""

raise ImportError("rolecall.learners.parts is now rolecall.learners.inputs")
