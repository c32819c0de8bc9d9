"""What a boundary raises when a part that the work depends on has failed."""


class InfrastructureError(RuntimeError):
    """What would have come out is unknown: an error on the episode, never a reward of 0."""


class RunEndingError(InfrastructureError):
    """No other episode would fare better: the run stops, and says why."""


def first(error: BaseException) -> BaseException:
    """What went wrong first, where several tasks failed together."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
