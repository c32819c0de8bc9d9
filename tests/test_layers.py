"""The house stands: every import runs downward or stays on its floor, and none in a circle."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import networkx

FILE = Path(__file__).resolve().parents[1] / "docs/draw_architecture.py"
spec = importlib.util.spec_from_file_location("draw_architecture", FILE)
drawing = importlib.util.module_from_spec(spec)
spec.loader.exec_module(drawing)


def test_no_import_runs_upward():
    floor = {room: n for n, layer in enumerate(drawing.LAYERS) for room in layer}
    upward = [
        (module, other)
        for module, named in drawing.imports().items()
        for other in named
        if floor[drawing.room_of(other)] > floor[drawing.room_of(module)]
    ]
    assert upward == []


def test_no_import_runs_in_a_circle():
    modules = networkx.DiGraph(
        (module, other) for module, named in drawing.imports().items() for other in named
    )
    assert list(networkx.simple_cycles(modules)) == []
    assert list(networkx.simple_cycles(drawing.between_rooms())) == []


def test_the_picture_is_of_this_code(tmp_path):
    drawing.draw(tmp_path / "now.svg")
    edges = sorted(drawing.between_rooms().edges)
    assert len(edges) > 30
    assert FILE.with_name("architecture.svg").is_file()
