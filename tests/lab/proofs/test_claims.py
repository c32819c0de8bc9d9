"""`rolecall prove`: expected beside obtained, as JSON, and status 1 when a claim fails."""

import io
import json

import pytest
from rich.console import Console

from rolecall_lab.proofs import Claim
from rolecall_lab.proofs import all as proofs
from rolecall_lab.proofs.claims import show_claims
from tests.toy import command

pytestmark = [pytest.mark.slow, pytest.mark.evidence]


def test_claims_are_shown_with_both_sides_and_counted():
    console = Console(file=io.StringIO(), width=80)
    claims = [Claim("One is one.", "1", "1.0", True), Claim("Two [is] one.", "1", "2.0", False)]
    found = show_claims(iter(claims), console=console)
    text = console.file.getvalue()
    assert "ok One is one." in text
    assert "NOT OK Two [is] one." in text
    assert "expected  1" in text
    assert "obtained  2.0" in text
    assert "1 of 2 claims hold" in text
    assert [claim["ok"] for claim in found] == [True, False]


def test_prove_runs_the_named_proofs_and_writes_json(tmp_path, capsys):
    assert command("prove", "kl", "preferences", "--json", tmp_path / "p.json") == 0
    claims = json.loads((tmp_path / "p.json").read_text())
    assert len(claims) == 6
    assert all(claim.keys() == {"claim", "expected", "obtained", "ok"} for claim in claims)
    assert all(claim["ok"] for claim in claims)
    assert "6 of 6 claims hold" in capsys.readouterr().out


def test_a_claim_that_fails_is_status_1(monkeypatch, capsys):
    monkeypatch.setitem(proofs.PROOFS, "kl", lambda: iter([Claim("x", "1", "2", False)]))
    assert command("prove", "kl") == 1


@pytest.mark.parametrize("name", ["klx", "everything"])
def test_an_unknown_proof_is_status_2(name, capsys):
    assert command("prove", name) == 2
    assert f"no proof '{name}'; there are kl, child_tokens" in capsys.readouterr().err
