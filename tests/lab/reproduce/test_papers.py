"""Every paper of `rolecall reproduce` has a proof, and a row in the documentation."""

from __future__ import annotations

from pathlib import Path

import pytest

from rolecall_lab.proofs.all import PROOFS
from rolecall_lab.reproduce.papers import PAPERS

PAGE = Path(__file__).resolve().parents[3] / "docs/reproduce.md"


@pytest.mark.parametrize("name", PAPERS)
def test_a_paper_has_a_proof_and_a_row(name):
    paper = PAPERS[name]
    assert paper.proof in PROOFS
    row = f"| `rolecall reproduce {name}` | {paper.title} ({paper.arxiv}) |"
    assert row in PAGE.read_text().splitlines()
