"""No file of the package unpickles what another process or machine wrote.

A pickle is a program. So are the values of `marshal`, `shelve` and `dill`, NumPy's arrays of
objects, and what PyTorch reads without `weights_only`. The few places that read pickles are listed
with the reason why nobody else can have written what they read.
"""

from __future__ import annotations

import ast

import pytest

from tests.sources import source_files

ALLOWED = {
    ("engines/vllm/wire.py", "pickle.loads"): "a socket without a name, which our child inherits",
    ("learners/ranks/wire.py", "pickle.loads"): "that, or a socket whose other end knows our key",
    ("learners/ranks/sharded.py", "pickle.Unpickler"): "finds no classes but those of shards",
    ("environments/code/test_cases.py", "pickle.Unpickler"): "finds no classes: it reads a text",
    (
        "rolecall_lab/bench/crowd.py",
        "concurrent.futures.ProcessPoolExecutor",
    ): "pipes that our child inherits",
}
MODULES = ("cloudpickle", "dill", "jsonpickle", "marshal", "shelve")
CALLS = (
    "_pickle.Unpickler", "_pickle.load", "_pickle.loads", "concurrent.futures.ProcessPoolExecutor",
    "joblib.load", "multiprocessing.Manager", "multiprocessing.Pool", "multiprocessing.Queue",
    "multiprocessing.connection.Client", "multiprocessing.connection.Listener",
    "multiprocessing.reduction.ForkingPickler", "pandas.read_pickle", "pickle.Unpickler",
    "pickle.load", "pickle.loads", "torch.distributed.all_gather_object",
    "torch.distributed.broadcast_object_list", "torch.distributed.checkpoint.FileSystemReader",
    "torch.distributed.gather_object", "torch.distributed.recv_object_list",
    "torch.distributed.scatter_object_list", "torch.serialization.load",
)  # fmt: skip
SUBCLASSED = ("torch.distributed.checkpoint.FileSystemReader",)  # with `read_metadata` of its own


def imported_names(tree: ast.AST) -> dict[str, str]:
    """What each imported name of a module stands for."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                root = name.name.partition(".")[0]
                found[name.asname or root] = name.name if name.asname else root
        elif isinstance(node, ast.ImportFrom) and node.module:
            for name in node.names:
                found[name.asname or name.name] = f"{node.module}.{name.name}"
    return found


def dotted(node: ast.AST, names: dict[str, str]) -> str:
    """`np.load` as `numpy.load`; nothing for what begins with no imported name."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name) or node.id not in names:
        return ""
    return ".".join([names[node.id], *reversed(parts)])


def uses_of_pickles(source: str) -> list[str]:
    """The forbidden names that a module uses."""
    tree = ast.parse(source)
    names = imported_names(tree)
    bases = {id(base) for node in ast.walk(tree) if isinstance(node, ast.ClassDef)
             for base in node.bases if dotted(base, names) in SUBCLASSED
             and any(isinstance(d, ast.FunctionDef) and d.name == "read_metadata"
                     for d in node.body)}  # fmt: skip
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute) and id(node) not in bases:
            name = dotted(node, names)
            if name in CALLS or (name and name.partition(".")[0] in MODULES and "." in name):
                found.append(name)
        if not isinstance(node, ast.Call):
            continue
        name, given = dotted(node.func, names), {word.arg: word.value for word in node.keywords}
        if name == "torch.load" and not is_true(given.get("weights_only")):
            found.append("torch.load without weights_only=True")
        if name == "torch.distributed.checkpoint.load" and "storage_reader" not in given:
            found.append("torch.distributed.checkpoint.load without a reader")
        if "allow_pickle" in given and not is_false(given["allow_pickle"]):
            found.append("allow_pickle")
        method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        if method == "recv" and not node.args and not node.keywords:
            found.append("Connection.recv")  # that of a socket takes a number of bytes
    return found


def is_true(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Constant) and node.value is True


def is_false(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Constant) and node.value is False


def test_nothing_is_unpickled_but_what_nobody_else_can_have_written():
    found = {
        (name, use) for name, file in source_files() for use in uses_of_pickles(file.read_text())
    }
    assert found == ALLOWED.keys()


@pytest.mark.parametrize(
    "source",
    [
        "import pickle\npickle.loads(b)",
        "from pickle import load as read\nread(file)",
        "import pickle as p\nclass A(p.Unpickler): ...",
        "import torch\ntorch.load(f)",
        "import torch\ntorch.load(f, weights_only=careful)",
        "import numpy as np\nnp.load(f, allow_pickle=True)",
        "from torch.distributed import checkpoint\ncheckpoint.load(state, checkpoint_id=f)",
        "from torch.distributed.checkpoint import FileSystemReader\nFileSystemReader(f)",
        "from torch import distributed\ndistributed.broadcast_object_list(x)",
        "from multiprocessing.connection import Client\nClient(a)",
        "def f(connection):\n    return connection.recv()",
        "import marshal\nmarshal.loads(b)",
        "import shelve\nshelve.open(f)",
    ],
)
def test_the_check_finds_each_kind(source):
    assert uses_of_pickles(source)


def test_the_check_lets_pass_what_runs_nothing():
    harmless = (
        "import torch, pickle, json, numpy as np\nfrom torch.distributed import checkpoint\n"
        "torch.load(f, weights_only=True)\npickle.dumps(x)\nnp.load(f, mmap_mode='r')\n"
        "checkpoint.load(state, storage_reader=mine)\njson.load(f)\nsocket.recv(4)"
    )
    assert uses_of_pickles(harmless) == []
