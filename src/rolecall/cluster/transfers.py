"""Lets a learner's ranks send weights to the engines of a policy, from device to device."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from rolecall.cluster.session import RaySession
from rolecall.cluster.supervised_actors import LostError, Member, ask
from rolecall.core.errors import first_line
from rolecall.core.interfaces.learner import Rendezvous
from rolecall.models.weight_transfer import Direct, MeetingPoint, TransferError

if TYPE_CHECKING:
    from ray.actor import ActorHandle


Send = Callable[[Rendezvous], Awaitable[None]]
notices = logging.getLogger("rolecall.notices")


class DirectTransfers:
    """Brings ranks and engines together, anew whenever other engines serve."""

    def __init__(
        self, session: RaySession, direct: Direct, lost: Callable[[Member, LostError], None]
    ) -> None:
        """`lost`: is told of an engine that is lost meanwhile."""
        self.session, self.direct, self._lost = session, direct, lost
        # By policy, and who comes.
        self._points: dict[str, tuple[MeetingPoint, list[ActorHandle]]] = {}

    async def send(
        self, policy: str, version: int, send: Send, members: Sequence[Member]
    ) -> set[ActorHandle]:
        """Send weights to the members and return the actors that received them.

        Reports why others did not, except lost ones. Raises what `send` raises except
        TransferError.
        """
        actors, each = [member.actor for member in members], self.direct.receivers
        point = self._point(policy, actors)
        receiving = [
            ask(member, "receive", policy, version, point.at, number * each)
            for number, member in enumerate(members)
        ]
        wrong, *errors = await point.meet([send(point.at), *receiving])
        lost = [(m, e) for m, e in zip(members, errors, strict=True) if isinstance(e, LostError)]
        for member, error in lost:
            self._lost(member, error)
        if any([wrong, *errors]):
            self.part(policy)
        if wrong is not None and not isinstance(wrong, TransferError):
            raise wrong
        if not lost and (cause := next(filter(None, [*errors, wrong]), None)):
            why = first_line(cause)
            notices.warning("weights of %r version %d come in files: %s", policy, version, why)
        return {actor for actor, error in zip(actors, errors, strict=True) if error is None}

    def _point(self, policy: str, actors: list[ActorHandle]) -> MeetingPoint:
        if policy in self._points and self._points[policy][1] != actors:
            self.part(policy)
        if policy not in self._points:
            host = self.session.ray.util.get_node_ip_address()
            point = MeetingPoint(host, self.direct, engines=len(actors))
            self._points[policy] = point, actors
        return self._points[policy][0]

    def part(self, policy: str) -> None:
        """Whoever waits there gets an error."""
        if policy in self._points:
            self._points.pop(policy)[0].close()

    def close(self) -> None:
        for policy in list(self._points):
            self.part(policy)
