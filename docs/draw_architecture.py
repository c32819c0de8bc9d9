"""Draws docs/architecture.svg from the imports of the code: `python docs/draw_architecture.py`.

A room is a folder of the package or one of the files beside them. A room's floor is one above the
highest of the rooms that it imports from, so every import runs downward; a test allows no circle.
"""

from __future__ import annotations

import ast
from pathlib import Path

import matplotlib
import networkx
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

ROOT = Path(__file__).resolve().parents[1] / "src/rolecall"
FLOOR = 1.05  # height of a floor in the picture


def modules() -> dict[str, Path]:
    """`models.cpu.kernels` -> its file; a package has the name of its folder."""
    return {_name(path): path for path in sorted(ROOT.rglob("*.py"))}


def imports() -> dict[str, set[str]]:
    """Module -> modules of the package that it imports, wherever in its file."""
    files = modules()
    found: dict[str, set[str]] = {}
    for module, path in files.items():
        named: set[str] = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rolecall"):
                base = (node.module or "").removeprefix("rolecall").removeprefix(".")
                inside = [f"{base}.{alias.name}".removeprefix(".") for alias in node.names]
                named |= {name if name in files else base for name in inside}
        found[module] = named - {module}
    return found


def room_of(module: str) -> str:
    """`models.cpu.kernels` -> `models`; the package's own `__init__` is the room `rolecall`."""
    return module.split(".")[0] or "rolecall"


def folder_of(module: str) -> str:
    """`models.cpu.kernels` -> `models.cpu`; a file beside the folders stands for itself."""
    if not module or (ROOT / module.replace(".", "/")).is_dir():
        return module or "rolecall"
    return module.rpartition(".")[0] or module


def between(place: dict[str, str]) -> networkx.DiGraph:
    """The imports between places, of which `place` says where each module is."""
    graph = networkx.DiGraph()
    graph.add_nodes_from(place.values())
    for module, named in imports().items():
        for other in named:
            if place[module] != place[other]:
                graph.add_edge(place[module], place[other])
    return graph


def between_rooms() -> networkx.DiGraph:
    return between({module: room_of(module) for module in modules()})


def floors() -> list[list[str]]:
    """Rooms from the ground up. Raises networkx's error where they import in a circle."""
    graph = between_rooms()
    height: dict[str, int] = {}
    for room in reversed(list(networkx.topological_sort(graph))):
        height[room] = max((height[below] + 1 for below in graph.successors(room)), default=0)
    return [
        sorted(room for room, floor in height.items() if floor == number)
        for number in range(max(height.values()) + 1)
    ]


def draw(target: Path) -> None:
    """Rooms by floor; an arrow that other arrows already imply is left out."""
    graph, plan = between_rooms(), floors()
    figure = Figure(figsize=(11, 0.85 * len(plan)))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(0, 11)
    axes.set_ylim(0, len(plan) * FLOOR)
    axes.axis("off")
    files = [room_of(module) for module in modules()]
    centre = {}
    for height, rooms in enumerate(plan):
        for number, room in enumerate(rooms):
            shift = 0.25 if height % 2 else -0.25  # so that arrows pass between the boxes
            x, y = 11 * (number + 0.5) / len(rooms) + shift, height * FLOOR + FLOOR / 2
            centre[room] = (x, y)
            box = FancyBboxPatch(
                (x - 0.72, y - 0.2), 1.44, 0.4, boxstyle="round,pad=0.02",
                facecolor="#f2efe9", edgecolor="#55504a", zorder=2,
            )  # fmt: skip
            axes.add_patch(box)
            axes.text(x, y + 0.05, room, ha="center", va="center", fontsize=10, zorder=3)
            small = f"{files.count(room)} files" if (ROOT / room).is_dir() else f"{room}.py"
            axes.text(x, y - 0.12, small, ha="center", va="center", fontsize=6, zorder=3)
    for user, used in sorted(networkx.transitive_reduction(graph).edges):
        (x0, y0), (x1, y1) = centre[user], centre[used]
        axes.add_patch(
            FancyArrowPatch(
                (x0, y0 - 0.22), (x1, y1 + 0.22), arrowstyle="-|>", mutation_scale=9,
                color="#8a6f4d", linewidth=0.9, zorder=1,
            )
        )  # fmt: skip
    # The same drawing is the same file, in which the names stand as text.
    with matplotlib.rc_context({"svg.hashsalt": "rolecall", "svg.fonttype": "none"}):
        figure.savefig(target, metadata={"Date": None} if target.suffix == ".svg" else None)


def _name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


if __name__ == "__main__":
    draw(Path(__file__).with_name("architecture.svg"))
