"""Says what this machine is, and tries out what a run needs of it."""
