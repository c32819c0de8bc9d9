"""Writes and opens the folder of a published index: its parts as one file, beside its corpus.

Search-R1 and Dr. MAS search the flat index of Wikipedia that is published in two parts, with the
passages as a gzip file. The folder has a manifest, so that a search needs nothing but its name.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, cast

from rolecall.data.files import GZIP
from rolecall.retrieval.corpus import fingerprint, read_corpus
from rolecall.retrieval.dense import Encode
from rolecall.retrieval.faiss_file import FaissFile
from rolecall.retrieval.flat_index import FlatIndex, read_flat_header
from rolecall.retrieval.folders import (
    Manifest,
    read_kind,
    read_manifest,
    write_manifest,
    written_aside,
)

KIND = "faiss"  # in the manifest
INDEX, CORPUS = "e5_Flat.index", "wiki-18.jsonl"
MODEL = "intfloat/e5-base-v2"  # made the published vectors
CHUNK = 1 << 22  # bytes in memory at once

Progress = Callable[[int], object]  # is told how many bytes have been written


def check_parts(parts: Sequence[Path]) -> FlatIndex:
    """Return the header of the index that the parts are, one after another.

    Raises ValueError where the first one does not begin as an index, and where sizes do not add up.
    """
    header = read_flat_header(parts[0])
    if header is None:
        others = [path.name for path in parts[1:] if read_flat_header(path)]
        hint = f"; {others[0]} does: the parts are in the wrong order" if others else ""
        raise ValueError(f"{parts[0]} does not begin as a flat index of faiss{hint}")
    sizes = {path: path.stat().st_size for path in parts}
    if (total := sum(sizes.values())) != header.num_bytes:
        listed = ", ".join(f"{path.name} {size:,}" for path, size in sizes.items())
        wrong = "a part is missing or cut" if total < header.num_bytes else "one is too many"
        raise ValueError(
            f"{parts[0]}: an index of {header.num_vectors:,} vectors of {header.dimensions} "
            f"numbers takes {header.num_bytes:,} bytes, and the parts hold {total:,} ({listed}): "
            f"{wrong}"
        )
    return header


def write_published(
    parts: Sequence[Path],
    corpus: Path,
    folder: Path,
    *,
    model: str = MODEL,
    wrote: Progress = lambda _: None,
) -> Manifest:
    """Join the parts and unpack the corpus into a new folder, which appears once it is whole.

    Raises ValueError for parts that are no index, for a corpus that cannot be read or that has
    another number of lines than the index has vectors, and if the folder is taken.
    """
    header = check_parts(parts)
    next(read_corpus(corpus))  # what is no passage shows here
    with written_aside(folder) as aside:
        target = aside / CORPUS  # the smaller one first: it shows sooner that it does not fit
        lines = _unpack(corpus, target, wrote)
        if lines != header.num_vectors:
            raise ValueError(
                f"{corpus} holds {lines:,} passages and the index {header.num_vectors:,} vectors: "
                "it is of another corpus"
            )
        with (aside / INDEX).open("wb") as out:
            for path in parts:
                with path.open("rb") as source:
                    _copy(source, out, wrote)
        if (aside / INDEX).stat().st_size != header.num_bytes:
            raise ValueError(f"{parts[0]}: a part was changed while it was copied; try again")
        manifest = Manifest(
            KIND, fingerprint(target), lines, {"model": model, "dimensions": header.dimensions}
        )
        write_manifest(aside, manifest)
    return manifest


def is_published(folder: Path) -> bool:
    """Return whether a folder holds what `write_published` writes."""
    return read_kind(folder) == KIND


def open_published(
    folder: Path,
    corpus: Path | None = None,
    *,
    model: str | None = None,
    e5: bool | None = None,
    encode: Encode | None = None,
) -> FaissFile:
    """Open the index of a folder; the corpus and the model are those beside it by default.

    Raises ValueError if the folder is not whole.
    """
    manifest = read_manifest(folder, kind=KIND)
    return FaissFile(
        folder / INDEX,
        corpus or folder / CORPUS,
        model=model or str(manifest.options["model"]),
        e5=e5,
        encode=encode,
    )


def _unpack(source: Path, target: Path, wrote: Progress) -> int:
    """Write the lines of a corpus, gzipped or not, and return how many are not empty.

    Raises ValueError for a gzip file that is cut or broken.
    """
    number, has_text = 0, False
    with source.open("rb") as head:
        zipped = head.read(2) == GZIP
    with gzip.open(source) if zipped else source.open("rb") as stream, target.open("wb") as out:
        try:
            for chunk in _chunks(cast(BinaryIO, stream)):
                out.write(chunk)
                wrote(len(chunk))
                *ended, rest = chunk.split(b"\n")
                for line in ended:
                    number += has_text or bool(line.strip())
                    has_text = False
                has_text = has_text or bool(rest.strip())
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise ValueError(
                f"{source} is not a whole gzip file: {error}; fetch it again"
            ) from error
    return number + has_text


def _copy(source: BinaryIO, out: BinaryIO, wrote: Progress) -> None:
    for chunk in _chunks(source):
        out.write(chunk)
        wrote(len(chunk))


def _chunks(file: BinaryIO) -> Iterator[bytes]:
    while chunk := file.read(CHUNK):
        yield chunk
