"""Declares what the config section of every engine answers."""

from __future__ import annotations

from typing import ClassVar

from rolecall.config.section import Section


class EngineSection(Section):
    """The keys of one kind of engine, and the facts about it that the rest of a config depends on.

    Every kind also has `dtype` and `separate_weights`, as a field or as a property.
    """

    label: ClassVar[str] = ""  # its name as its makers write it; by default `name`
    is_embedded: ClassVar[bool] = False  # it samples models of the process that it runs in
    is_served: ClassVar[bool] = False  # it is a server that somebody else runs
    takes_weights: ClassVar[bool] = True  # updates can be published to it
    runs_on_cluster: ClassVar[bool] = False  # it can run in processes of a cluster
    can_sleep: ClassVar[bool] = False  # it can give its GPUs back while weights are updated

    name: str
    """Name of the engine."""

    @property
    def num_engines(self) -> int:
        """Return how many engines share the requests."""
        return 1

    @property
    def gpus_per_engine(self) -> int:
        return 1

    @property
    def first_device(self) -> str | None:
        """Return the device that the section names; None for that of the policy's weights."""
        return None

    @property
    def longest_row(self) -> int | None:
        """Return the most tokens of a prompt and its answer, if the section bounds them."""
        return None

    @property
    def receives_directly(self) -> bool:
        """Return whether new weights come from the learner's devices, and not in files."""
        return False

    @property
    def has_budget(self) -> bool:
        return False

    def takes_text(self, base: str) -> bool:
        """Return whether it takes messages and returns text, for a policy with this base."""
        return False
