"""Models on a CPU."""

from rolecall.models.cpu.vector_math import choose_vector_math

choose_vector_math()  # before any thread computes
