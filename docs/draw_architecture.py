"""Draws docs/architecture.svg from the imports of the code: `python docs/draw_architecture.py`.

LAYERS is the plan of the house: a room may import from its own layer and from those below. A test
holds the code to it.
"""

from __future__ import annotations

import ast
from pathlib import Path

import matplotlib
import networkx
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

ROOT = Path(__file__).resolve().parents[1] / "src/rolecall"
# From the ground up: layers of rooms, each a folder or some files of the package.
LAYERS: list[dict[str, list[str]]] = [
    {"nouns": ["core", "tags", "seeds", "scope", "memory", "config_errors", "errors", "places"]},
    {
        "settings": ["config", "registry", "learners.optim"],
        "interfaces": ["engines.base", "environments.base", "tools.base", "tools.calls"],
        "row files": ["environments.row_files"],
    },
    {
        "agents": ["agents", "team", "chat", "controls", "parsers", "data"],
        "tools": ["tools"],
        "retrieval": ["retrieval"],
        "sandbox": ["sandbox"],
        "workflows": ["workflows", "habits"],
        "environments": ["environments"],
        "rewards": ["rewards"],
        "algorithms": ["algorithms"],
        "packing": ["packing"],
    },
    {
        "models": [
            "models",
            "attention",
            "branches",
            "flex",
            "flex_pages",
            "kv_cache",
            "kernels",
            "fused",
            "fused_heads",
            "last_layer",
            "exact_head",
            "llama",
            "adapters",
            "tiny",
            "tiny.tokenizer",
        ],
        "engines": ["engines"],
        "critics": ["critics"],
        "learners": ["learners"],
    },
    {
        "rollout": ["rollout", "evaluation", "user_code"],
        "drawing": ["drawing", "curriculum"],
        "opponents": ["opponents"],
        "run folder": ["runs", "episodes", "checkpoint", "logs"],
        "data sets": ["data_sets"],
        "proofs": ["proofs"],
    },
    {"monitor": ["monitor"], "serve": ["serve"]},
    {
        "assembly": ["assembly", "parts", "credit", "weights", "needs", "checks"],
        "trainer": ["trainer", "collecting", "learning", "held_loop"],
    },
    {"bench": ["bench"], "elsewhere": ["elsewhere"]},
    {
        "commands": [
            "commands",
            "api",
            "cli",
            "info",
            "__main__",
            "",
            "tiny.build",
            "tiny.demonstrations",
        ]
    },
]


def room_of(module: str) -> str:
    """The room whose longest entry names the module or a folder that it is in."""
    found = [
        (len(entry), room)
        for layer in LAYERS
        for room, entries in layer.items()
        for entry in entries
        if module == entry or (entry and module.startswith(f"{entry}."))
    ]
    if not found:
        raise ValueError(f"{module or 'rolecall'} is in no room of docs/draw_architecture.py")
    return max(found)[1]


def imports() -> dict[str, set[str]]:
    """Module -> modules of the package that it imports, wherever in its file."""
    files = {_name(path): path for path in sorted(ROOT.rglob("*.py"))}
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


def between_rooms() -> networkx.DiGraph:
    graph = networkx.DiGraph()
    for module, named in imports().items():
        for other in named:
            if room_of(module) != room_of(other):
                graph.add_edge(room_of(module), room_of(other))
    return graph


def draw(target: Path) -> None:
    """Rooms by layer; an arrow that other arrows already imply is left out."""
    figure = Figure(figsize=(11, 9))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(0, 11)
    axes.set_ylim(0, len(LAYERS) * 1.12)
    axes.axis("off")
    centre = {}
    for height, layer in enumerate(LAYERS):
        for number, (room, entries) in enumerate(layer.items()):
            x, y = 11 * (number + 0.5) / len(layer), height * 1.12 + 0.5
            centre[room] = (x, y)
            box = FancyBboxPatch(
                (x - 0.8, y - 0.24), 1.6, 0.48, boxstyle="round,pad=0.02",
                facecolor="#f2efe9", edgecolor="#55504a", zorder=2,
            )  # fmt: skip
            axes.add_patch(box)
            axes.text(x, y + 0.06, room, ha="center", va="center", fontsize=11, zorder=3)
            files = " ".join(entry for entry in entries if entry and entry != room)
            small = files if len(files) < 34 else files[:31] + "..."
            axes.text(x, y - 0.13, small, ha="center", va="center", fontsize=5.5, zorder=3)
    for user, used in sorted(networkx.transitive_reduction(between_rooms()).edges):
        (x0, y0), (x1, y1) = centre[user], centre[used]
        level = abs(y0 - y1) < 0.1
        side = 0.82 if x1 > x0 else -0.82
        start, end = (x0, y0 - 0.26), (x1, y1 + 0.26)
        if level:
            start, end = (x0 + side, y0), (x1 - side, y1)
        axes.add_patch(
            FancyArrowPatch(
                start, end, arrowstyle="-|>", mutation_scale=9, color="#8a6f4d", linewidth=0.9,
                connectionstyle="arc3,rad=0.18" if level else "arc3,rad=0.0", zorder=1,
            )
        )  # fmt: skip
    with matplotlib.rc_context({"svg.hashsalt": "rolecall"}):  # the same drawing, the same file
        figure.savefig(target, metadata={"Date": None})


def _name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


if __name__ == "__main__":
    draw(Path(__file__).with_name("architecture.svg"))
