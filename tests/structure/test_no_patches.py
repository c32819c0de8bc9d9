"""Other people's modules are used as they are: nothing here assigns to what it imported."""

from __future__ import annotations

import ast

import pytest

from tests.sources import source_files

# Programs of users that run as modules of their own.
OWN_MODULES = {"config/registry.py", "sandbox/inside/calls.py", "sandbox/inside/cells.py"}
SETTINGS = "torch._dynamo.config."  # made to be set
# What decides how modules are imported.
IMPORTS = ("sys.modules[", "sys.meta_path", "sys.path_hooks")


def patches_in(code: str, *, owns_modules: bool = False) -> list[int]:
    """Return the lines in which code replaces an attribute of a module or class of others."""
    tree = ast.parse(code)
    foreign = set(foreign_names(tree))
    lines = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("setattr", "delattr"):
            lines += [node.lineno] if root_of(node.args[0]) in foreign else []
        for target in targets_of(node):
            text = ast.unparse(target)
            if text.startswith(SETTINGS) or (text.startswith("sys.modules[") and owns_modules):
                continue
            is_own = not isinstance(target, ast.Attribute) or root_of(target) not in foreign
            if text.startswith(IMPORTS) or text.endswith(".__code__") or not is_own:
                lines.append(node.lineno)
    return lines


def targets_of(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.Assign | ast.Delete):
        return node.targets
    return [node.target] if isinstance(node, ast.AugAssign | ast.AnnAssign) else []


def foreign_names(tree: ast.AST) -> list[str]:
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [
                (alias.asname or alias.name.partition(".")[0])
                for alias in node.names
                if not alias.name.startswith("rolecall")
            ]
        elif isinstance(node, ast.ImportFrom) and not (node.module or "").startswith("rolecall"):
            names += [alias.asname or alias.name for alias in node.names]
    return names


def root_of(target: ast.expr) -> str:
    while isinstance(target, ast.Attribute):
        target = target.value
    return target.id if isinstance(target, ast.Name) else ""


def test_nothing_here_patches_what_others_wrote():
    found = {}
    for name, file in source_files():
        if lines := patches_in(file.read_text(), owns_modules=name in OWN_MODULES):
            found[name] = lines
    assert found == {}


@pytest.mark.parametrize(
    "code",
    [
        "import sys\nsys.modules['scipy.linalg'] = None",
        "import sys\ndel sys.modules['scipy']",
        "from transformers import utils\nutils.is_scipy_available = lambda: False",
        "from transformers import utils\nsetattr(utils, 'x', 1)",
        "import transformers.utils\ntransformers.utils.x = 1",
        "def f(): ...\nf.__code__ = f.__code__.replace(co_stacksize=9)",
    ],
)
def test_a_patch_is_noticed(code):
    assert patches_in(code) == [2]
