"""Joins a cluster of Ray, or starts one on this machine, and checks that its nodes are alike."""

from __future__ import annotations

import os
import platform
import socket
import uuid
from collections import deque
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, TypeVar

from rolecall.config.cluster import RayClusterConfig
from rolecall.core.errors import ConfigError, first_line
from rolecall.core.json_types import JsonObject, Options
from rolecall.core.optional import optional
from rolecall.runtime.die_with_parent import end_with_parent
from rolecall.runtime.scratch import MEMORY, SHARED, hold, remove_shared
from rolecall.runtime.signals import kill

if TYPE_CHECKING:
    from ray import ObjectRef
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

Result = TypeVar("Result")


PACKAGES = ("rolecall", "torch", "transformers", "numpy")
NODE_S = 60.0  # in which a node must say what it has
# Of the time in which an actor must say that it lives. While this process is itself stopped (a
# laptop is closed, a machine is moved), no more than one of them passes.
PARTS = 10
MOST_KILLS = 1000  # whose end is waited for when the run leaves the cluster
LISTEN_S = 5.0  # in which a cluster that is there must accept a call
REFUSED = (
    "it asks for a token: set RAY_AUTH_MODE=token, and give both machines the same one "
    "(RAY_AUTH_TOKEN, or ~/.ray/auth_token)"
)
CLEAR_S = 5.0  # in which nodes remove what the run left there
# Ray hides GPUs from a driver that asked for none, and from actors without one.
QUIET = {
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # Of actors and machines that are lost this package prints a line itself; Ray prints pages.
    "RAY_DEDUP_LOGS_SKIP_REGEX": "A worker died or was killed|Raylet is terminated",
}


class RaySession:
    """The connection of a run to Ray, until `close`."""

    def __init__(self, section: RayClusterConfig) -> None:
        """Connect to Ray.

        Raises ConfigError if Ray is missing, does not answer, or has nodes that differ.
        """
        for key, value in QUIET.items():
            os.environ.setdefault(key, value)  # some are read when Ray is imported
        self.ray: Any = optional("ray", extra="ray", key="cluster.name")
        self.section = section
        # Of the run on each machine, for logs and weights. A later run removes it, should the
        # processes that hold it be killed.
        self.scratch = MEMORY / f"{SHARED}{uuid.uuid4().hex[:8]}"
        self.on_close: list[Callable[[], None]] = []
        self._kills: deque[ObjectRef] = deque(maxlen=MOST_KILLS)  # references to the last ones
        self._joined = not self.ray.is_initialized()
        if self._joined:
            self._join()
        try:
            hold(self.scratch)
            self._check_nodes()
        except BaseException:
            self.close()
            raise

    def _join(self) -> None:
        address = self.section.address
        check_reachable(address)
        how: Options = {
            "namespace": self.scratch.name, "logging_level": "ERROR", "log_to_driver": False,
        }  # fmt: skip
        try:
            if address == "auto":
                address = "local"
                if running := _cluster_of_this_machine():
                    try:
                        self.ray.init(address=running, **how)
                        return
                    except ConnectionError:
                        if "RAY_ADDRESS" in os.environ or _is_listening(running):
                            raise
            here = {"include_dashboard": False} if address == "local" else {}
            self.ray.init(address=address, **how, **here)
        except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
            why = REFUSED if "InvalidAuthToken" in _chain(error) else first_line(error)
            raise ConfigError(
                f"cluster.address: no Ray at {self.section.address!r}: {why}"
            ) from error

    def nodes(self) -> list[JsonObject]:
        """Return the nodes that are alive, as Ray describes them."""
        return [node for node in self.ray.nodes() if node["Alive"]]

    def _check_nodes(self) -> None:
        """Check that all nodes have this process's versions; raises ConfigError otherwise."""
        reports = {
            node["NodeManagerHostname"]: self.run_on(node["NodeID"], _versions)
            for node in self.nodes()
        }
        mine = _versions()
        for host, report in reports.items():
            try:
                theirs = self.ray.get(report, timeout=NODE_S)
            except self.ray.exceptions.RayError as error:
                raise ConfigError(
                    f"cluster: node {host} does not run rolecall: {first_line(error)}"
                ) from error
            if others := {name: (theirs[name], mine[name]) for name in mine
                          if theirs[name] != mine[name]}:  # fmt: skip
                name, (there, here) = next(iter(others.items()))
                raise ConfigError(
                    f"cluster: node {host} has {name} {there} and this machine has {here}; "
                    "install the same"
                )

    @property
    def here(self) -> str:
        """Ray's name of this machine."""
        return str(self.ray.get_runtime_context().get_node_id())

    def actor_options(self, number: int, *, avoided: str = "") -> Options:
        """Return Ray's options for an actor without GPUs, by its number among its kind.

        Actors go round the machines and share their cores, as processes do. `avoided`: a machine
        that may be gone, of which Ray learns late.
        """
        alive = sorted(node["NodeID"] for node in self.nodes())
        nodes = [node for node in alive if node != avoided] or alive
        return {"num_cpus": 0, "scheduling_strategy": pin_to_node(nodes[number % len(nodes)])}

    def actor_device(self, named: str) -> str:
        """Return the device of an actor: cuda, which is its own, or cpu; `named`: in the config."""
        on_gpu = self.gpus() > 0 if named == "auto" else named.startswith("cuda")
        return "cuda" if on_gpu else "cpu"

    def run_on(self, node: str, function: Callable[..., Result], *arguments: Any) -> ObjectRef:
        """Return a reference to what the function returns on that machine."""
        work = self.ray.remote(num_cpus=0, max_retries=0)(_done_here)
        return work.options(scheduling_strategy=pin_to_node(node)).remote(function, *arguments)

    def kill(self, node: str, pid: int) -> ObjectRef:
        """End a process of that machine, also one that is stopped. Returns a reference to that."""
        killing = self.run_on(node, kill, pid)
        self._kills.append(killing)
        return killing

    def gpus(self) -> int:
        """Return how many GPUs all nodes have together."""
        return int(self.ray.cluster_resources().get("GPU", 0))

    def close(self) -> None:
        """Leave the cluster; its actors of this run end, and so does one that was started here."""
        if not self.ray.is_initialized():
            return
        for end in self.on_close:
            end()
        nodes = [node["NodeID"] for node in self.nodes()]
        cleared = [self.run_on(node, remove_shared, self.scratch.name) for node in nodes]
        pending = [*self._kills, *cleared]
        self.ray.wait(pending, num_returns=len(pending), timeout=CLEAR_S)
        if self._joined:
            self.ray.shutdown()


def _done_here(function: Callable[..., Result], *arguments: Any) -> Result:
    end_with_parent()
    return function(*arguments)


def _cluster_of_this_machine() -> str | None:
    """Return the cluster that `ray start` has joined here, or that RAY_ADDRESS names.

    Not whichever is found, as Ray's own `auto` does: it would join what another run has started for
    itself, or what a killed run has left and what is just ending.
    """
    from ray._private.utils import read_ray_address

    address: str | None = os.environ.get("RAY_ADDRESS") or read_ray_address()
    return address


def check_reachable(address: str) -> None:
    """Check that something listens at an address; raises ConfigError otherwise.

    Ray itself would try the address for minutes.
    """
    named = address.removeprefix("ray://")
    if address not in ("auto", "local") and not _is_listening(named):
        raise ConfigError(
            f"cluster.address: nothing answers at {address!r} within {LISTEN_S:g} s; start Ray "
            "there (`ray start --head`) and write its HOST:PORT, or write local"
        )


def _is_listening(address: str) -> bool:
    """Or what was there has been stopped."""
    host, _, port = address.rpartition(":")
    if not port.isdecimal():
        return False
    try:
        socket.create_connection((host, int(port)), timeout=LISTEN_S).close()
    except OSError:
        return False
    return True


def _chain(error: BaseException | None) -> str:
    """Return what an error and its causes say."""
    messages = []
    while error is not None:
        messages.append(str(error))
        error = error.__cause__ or error.__context__
    return "\n".join(messages)


def pin_to_node(node: str) -> NodeAffinitySchedulingStrategy:
    """Place on this node or nowhere: what merely prefers a node, Ray puts on others too."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(node, soft=False)


def _versions() -> dict[str, str]:
    """Return the versions of what a node runs."""
    return {"Python": platform.python_version()} | {name: _version(name) for name in PACKAGES}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "(none)"
