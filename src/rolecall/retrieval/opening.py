"""Opens the retriever or the client for the place to search that a user names."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from rolecall.retrieval.base import Passage, Retriever
from rolecall.retrieval.bm25 import Bm25, build_bm25
from rolecall.retrieval.client import SearchClient
from rolecall.retrieval.corpus import fingerprint, read_corpus
from rolecall.retrieval.dense import Dense, build_dense
from rolecall.retrieval.dialects import Dialect
from rolecall.retrieval.embedded import Embedded
from rolecall.retrieval.faiss_file import FaissFile
from rolecall.retrieval.folders import has_index, read_manifest
from rolecall.retrieval.published_index import is_published, open_published
from rolecall.retrieval.remote import Servers

log = logging.getLogger("rolecall")


def open_index(
    folder: Path,
    corpus: Path | None = None,
    *,
    model: str | None = None,
    e5: bool | None = None,
    show: bool = False,
) -> Retriever:
    """Open the index of a folder, or build it from the corpus first; `show` reports progress.

    With `model`, of sentence-transformers, it is an index of vectors, else BM25; `e5` says that the
    model wants the prefixes of that family (None: its name tells).

    If `folder` is a file, it is an index that faiss made elsewhere; it is opened as it is. A folder
    that `rolecall data searchr1-index` made names its corpus and its model itself.

    Raises ValueError if the folder holds no whole index, one of another corpus or model, or if it
    holds none and there is no corpus to build it from.
    """
    if folder.is_file():
        if corpus is None or model is None:
            raise ValueError(
                f"{folder} is a file: an index of faiss needs `corpus`, whose lines its vectors "
                "are of, and `model`, which made them"
            )
        return FaissFile(folder, corpus, model=model, e5=e5)
    if is_published(folder):
        return open_published(folder, corpus, model=model, e5=e5)
    kind = "bm25" if model is None else "dense"
    if has_index(folder):
        manifest = read_manifest(folder, kind=kind)
        if corpus is not None and fingerprint(corpus) != manifest.corpus:
            raise ValueError(f"the index in {folder} is of another corpus than {corpus}")
        if model is not None and manifest.options["model"] != model:
            raise ValueError(f"the index in {folder} is of model {manifest.options['model']!r}")
    elif corpus is None:
        raise ValueError(
            f"{folder} holds no index, and there is no corpus to build it from; set `corpus` to a "
            "file of passages, or `index` to a folder that has one"
        )
    else:
        log.info("indexing corpus=%s index=%s kind=%s", corpus, folder, kind)
        mark, passages = fingerprint(corpus), read_corpus(corpus)
        if model is None:
            build_bm25(passages, folder, corpus=mark, show=show)
        else:
            build_dense(passages, folder, corpus=mark, model=model, e5=e5, show=show)
    return Bm25.open(folder) if model is None else Dense(folder)


def open_client(
    *,
    url: str | Sequence[str] | None = None,
    dialect: Dialect | None = None,
    corpus: str | None = None,
    index: str | None = None,
    model: str | None = None,
    passages: Sequence[Passage] | None = None,
    deadline_s: float = 30.0,
) -> SearchClient:
    """Open a client of the servers at `url`, else the folder `index`, else `passages` in memory.

    Raises ValueError for options that contradict one another or lead nowhere.
    """
    if url is not None:
        if corpus or index or model:
            raise ValueError("corpus, index and model have no effect: url says where to search")
        urls = [url] if isinstance(url, str) else url
        servers = Servers(urls, dialect=dialect or "batch", deadline_s=deadline_s)
        return SearchClient(servers, deadline_s=deadline_s)
    if dialect is not None:
        raise ValueError("dialect has no effect without url")
    if index is not None:
        file = None if corpus is None else Path(corpus).expanduser()
        retriever = open_index(Path(index).expanduser(), file, model=model)
    elif corpus or model:
        raise ValueError("index is missing: the folder in which the index of the corpus is kept")
    elif passages is None:
        raise ValueError("there is nothing to search: set url, or index and corpus")
    else:
        retriever = Bm25.from_passages(passages)
    return SearchClient(Embedded(retriever), deadline_s=deadline_s)
