"""What a boundary raises when a part that the work depends on has failed."""


class InfrastructureError(RuntimeError):
    """What would have come out is unknown: an error on the episode, never a reward of 0."""
