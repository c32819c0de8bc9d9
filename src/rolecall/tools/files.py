"""Reads and writes an agent's files under one folder; no path leads out of it.

Each part of a path is opened from the folder before it and links are not followed, so neither
`..`, an absolute path, a link, nor a folder swapped meanwhile for a link leaves the root.
"""

from __future__ import annotations

import errno
import os
import stat
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Literal

from rolecall.core.interfaces.environment import World
from rolecall.core.interfaces.tool import Tool, ToolError, wrote
from rolecall.runtime.held_folders import HeldFolder, sweep
from rolecall.tools.functions import tool

MAX_FILES = 1_000  # that are listed
MAX_DEPTH = 16  # parts of a path that is written
READ = os.O_RDONLY | os.O_NONBLOCK  # a pipe that lies there must not be waited for
WRITE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK
FOLDER = os.O_RDONLY | os.O_DIRECTORY
SAFE = os.O_NOFOLLOW | os.O_CLOEXEC


class Files:
    """Tool `file_system`: read, write and list files under `root`.

    Without a root each episode has an empty folder of its own, which goes with it.
    """

    def __init__(
        self,
        root: str | None = None,
        writable: bool = True,
        max_bytes: int = 1_000_000,
        max_files: int = 100,
        max_total_bytes: int = 10_000_000,
    ) -> None:
        """root: folder that all episodes share; by default each has one of its own.
        writable: whether files may be written.
        max_bytes: most bytes of one file.
        max_files: most files that an episode may write.
        max_total_bytes: most bytes that an episode may write.
        """
        if root is not None and not Path(root).expanduser().is_dir():
            raise ValueError(f"files: there is no folder {root}")
        if root is None and not writable:
            raise ValueError("files: writable=false has no effect without a root: nothing is there")
        if root is None:
            sweep(Path(tempfile.gettempdir()))
        self.root, self.writable, self.max_bytes = root, writable, max_bytes
        self.max_files, self.max_total_bytes = max_files, max_total_bytes

    @asynccontextmanager
    async def open(self, world: World, *, seed: int) -> AsyncIterator[list[Tool]]:
        if self.root is not None:
            yield [self._tool(Path(self.root).expanduser())]
            return
        with HeldFolder(Path(tempfile.gettempdir()), "files-") as folder:
            root = Path(folder) / "files"
            root.mkdir()
            yield [self._tool(root)]

    def _tool(self, root: Path) -> Tool:
        written = Written(self.max_files, self.max_total_bytes)

        def file_system(
            operation: Literal["read", "write", "list"], path: str = "", content: str = ""
        ) -> str:
            """Read a file, write content to a file, or list the files of a folder."""
            if operation == "list":
                return list_files(root, path)
            if operation == "read":
                return read(root, path, most=self.max_bytes)
            if not self.writable:
                raise ToolError("the files are read-only")
            written.add(path, len(content.encode()))
            result = write(root, path, content, most=self.max_bytes)
            wrote([path])
            return result

        return tool(file_system)


class Written:
    """Counts what an episode has written; more than it may is a ToolError before anything is
    changed.
    """

    def __init__(self, most_files: int, most_bytes: int) -> None:
        self._most_files, self._most_bytes = most_files, most_bytes
        self._sizes: dict[str, int] = {}  # path -> bytes; of a write that failed, too
        self._lock = threading.Lock()  # calls of one turn run at once

    def add(self, path: str, size: int) -> None:
        parts = [name for name in path.split("/") if name not in ("", ".")]
        if len(parts) > MAX_DEPTH:
            raise ToolError(f"{path[:80]}: at most {MAX_DEPTH} folders may lie inside one another")
        with self._lock:
            sizes = self._sizes | {"/".join(parts): size}
            if len(sizes) > self._most_files:
                raise ToolError(f"at most {self._most_files} files may be written")
            if sum(sizes.values()) > self._most_bytes:
                raise ToolError(f"all files together may have {self._most_bytes} bytes")
            self._sizes = sizes


def list_files(root: Path, path: str = "") -> str:
    """Return names with sizes, folders with a slash, one a line."""
    with _opened(root, path, FOLDER) as folder:
        lines = []
        for name in sorted(os.listdir(folder))[:MAX_FILES]:
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if stat.S_ISDIR(status.st_mode):
                lines.append(f"{name}/")
            elif stat.S_ISREG(status.st_mode):
                lines.append(f"{name} ({status.st_size} bytes)")
    return "\n".join(lines) or "no files"


def read(root: Path, path: str, *, most: int) -> str:
    with _opened(root, path, READ) as file:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise ToolError(f"{path}: not a file")
        size = os.fstat(file).st_size
        if size > most:
            raise ToolError(f"{path}: {size} bytes; {most} is the most")
        data = b""
        while len(data) <= most and (chunk := os.read(file, 1 << 20)):
            data += chunk
    return data[:most].decode(errors="replace")


def write(root: Path, path: str, content: str, *, most: int) -> str:
    data = content.encode()
    if len(data) > most:
        raise ToolError(f"{path}: {len(data)} bytes; {most} is the most")
    with _opened(root, path, WRITE, make=True) as file:
        view = memoryview(data)
        while view:
            view = view[os.write(file, view) :]
    return f"wrote {len(data)} bytes to {path}"


@contextmanager
def _opened(root: Path, path: str, flags: int, *, make: bool = False) -> Iterator[int]:
    """Open `path` below `root` and yield its file descriptor; raises ToolError for other paths."""
    if path.startswith("/") or "\0" in path:
        raise ToolError(f"{path!r}: only relative paths are allowed")
    parts = [name for name in path.split("/") if name not in ("", ".")]
    if ".." in parts:
        raise ToolError(f"{path!r}: '..' is not allowed")
    if not parts and not flags & os.O_DIRECTORY:
        raise ToolError("a path is needed")
    here = os.open(root, FOLDER | os.O_CLOEXEC)
    try:
        for number, name in enumerate(parts):
            last = number == len(parts) - 1
            if make and not last:
                with suppress(FileExistsError):
                    os.mkdir(name, dir_fd=here)
            following = os.open(name, (flags if last else FOLDER) | SAFE, 0o644, dir_fd=here)
            os.close(here)
            here = following
        yield here
    except OSError as error:
        reason = "a link" if error.errno == errno.ELOOP else (error.strerror or str(error)).lower()
        raise ToolError(f"{path or '.'}: {reason}") from error
    finally:
        os.close(here)
