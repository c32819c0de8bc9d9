"""Files under a root, and no way out of it."""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path

import pytest

from rolecall.core.interfaces.environment import World
from rolecall.core.interfaces.tool import Tool, ToolError
from rolecall.tools.files import Files


def use(kit: Files, *calls: dict[str, str]) -> list[str]:
    async def main() -> list[str]:
        async with kit.open(World(), seed=0) as tools:
            [tool] = tools
            return [await told(tool, call) for call in calls]

    return asyncio.run(main())


async def told(tool: Tool, call: dict[str, str]) -> str:
    try:
        return await tool.call(**call)
    except ToolError as error:
        return f"Error: {error}"


def test_what_is_written_can_be_read_and_listed():
    said = use(
        Files(),
        {"operation": "list"},
        {"operation": "write", "path": "notes/a.txt", "content": "gr\u00fcn\n"},
        {"operation": "read", "path": "notes/a.txt"},
        {"operation": "write", "path": "./notes//a.txt", "content": "b"},
        {"operation": "read", "path": "notes/a.txt"},
        {"operation": "list", "path": "notes"},
        {"operation": "list", "path": "."},
    )
    assert said[0] == "no files"
    assert said[2:] == [
        "gr\u00fcn\n",
        "wrote 1 bytes to ./notes//a.txt",
        "b",
        "a.txt (1 bytes)",
        "notes/",
    ]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder beside a secret, whose name the secret's folder begins with."""
    root = tmp_path / "root"
    (root / "sub").mkdir(parents=True)
    (tmp_path / "root-secret").mkdir()
    (tmp_path / "root-secret" / "key").write_text("secret")
    (root / "link").symlink_to(tmp_path / "root-secret" / "key")
    (root / "folder-link").symlink_to(tmp_path / "root-secret")
    (root / "up").symlink_to("..")
    (root / "self").symlink_to(".")
    os.mkfifo(root / "pipe")
    return root


@pytest.mark.parametrize("operation", ["read", "write", "list"])
@pytest.mark.parametrize(
    "path",
    [
        "../root-secret/key", "sub/../../root-secret/key", "/etc/passwd", "link", "folder-link/key",
        "up/root-secret/key", "self/link", "../root-secret", "folder-link", "up", "a\0b", "pipe",
        "sub/../sub", "link/x", "//etc/passwd",
    ],
)  # fmt: skip
def test_no_path_leads_out(root, operation, path):
    secret = root.parent / "root-secret" / "key"
    before = sorted(root.parent.rglob("*"))
    [said] = use(Files(str(root)), {"operation": operation, "path": path, "content": "x"})
    assert said.startswith("Error: ")
    assert "secret" not in said.replace(path, "")
    assert secret.read_text() == "secret"
    assert sorted(root.parent.rglob("*")) == before


def test_an_episode_writes_no_more_than_it_may():
    def write(path, content="12345"):
        return {"operation": "write", "path": path, "content": content}

    kit = Files(max_files=3, max_total_bytes=20)
    calls = [write("a"), write("b"), write("./b", "1234567890"), write("c"), write("d")]
    said = use(kit, *calls, write("a", "1234567"), write("/".join("x" * 17)), write("a", ""))
    assert said == [
        "wrote 5 bytes to a",
        "wrote 5 bytes to b",
        "wrote 10 bytes to ./b",
        "wrote 5 bytes to c",
        "Error: at most 3 files may be written",
        "Error: all files together may have 20 bytes",
        f"Error: {'/'.join('x' * 17)}: at most 16 folders may lie inside one another",
        "wrote 0 bytes to a",
    ]
    assert use(kit, write("d")) == ["wrote 5 bytes to d"], "the next episode begins anew"


def test_links_are_not_listed(root):
    [said] = use(Files(str(root)), {"operation": "list"})
    assert said == "sub/"


def test_limits_and_wrong_use_are_told(root):
    (root / "big").write_bytes(b"x" * 101)
    said = use(
        Files(str(root), max_bytes=100),
        {"operation": "read", "path": "big"},
        {"operation": "write", "path": "new", "content": "y" * 101},
        {"operation": "read", "path": "sub"},
        {"operation": "read", "path": ""},
        {"operation": "read", "path": "none"},
        {"operation": "delete", "path": "big"},
        {"operation": "write", "path": "big/x", "content": "y"},
    )
    expected = [
        "101 bytes; 100 is the most", "101 bytes; 100 is the most", "sub: not a file",
        "a path is needed", "none: no such file or directory", "'operation'", "not a directory",
    ]  # fmt: skip
    for line, part in zip(said, expected, strict=True):
        assert line.startswith("Error: ")
        assert part in line


def test_read_only_files_stay_as_they_are(root):
    (root / "a").write_text("a")
    said = use(
        Files(str(root), writable=False),
        {"operation": "write", "path": "a", "content": "b"},
        {"operation": "read", "path": "a"},
    )
    assert said == ["Error: the files are read-only", "a"]


def test_episodes_do_not_see_each_others_files_and_leave_none(tmp_path, monkeypatch):
    kit = Files()

    async def main() -> str:
        async with kit.open(World(), seed=0) as [one], kit.open(World(), seed=1) as [other]:
            await one.call(operation="write", path="a", content="1")
            return await other.call(operation="list")

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert asyncio.run(main()) == "no files"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("options", [{"root": "/no/such/folder"}, {"writable": False}])
def test_options_that_cannot_work_are_errors(options):
    with pytest.raises(ValueError, match="files: "):
        Files(**options)
