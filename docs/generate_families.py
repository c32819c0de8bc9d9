"""Writes into docs/models.md what real tokenizers and chat templates can do.

`make real-tokenizers && python docs/generate_families.py`
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from rolecall.agents.chat_template import encode, prompt_ids  # noqa: E402
from rolecall.agents.tool_form import tool_form  # noqa: E402
from rolecall.agents.turn_form import turn_form  # noqa: E402
from rolecall.agents.written_turn import write_ids, write_turn  # noqa: E402
from rolecall.core.types import Message  # noqa: E402
from rolecall.models.tokenizers import PROBES  # noqa: E402
from tests.real.models import CASES, OWN, Case, _load  # noqa: E402

PAGE = ROOT / "docs" / "models.md"
BEGIN, END = "<!-- families -->", "<!-- end of families -->"
ASKED, AGAIN, ANSWER = Message("user", "What is 2 + 3?"), Message("user", "Sure?"), "It is 5."
HEAD = """
| tokenizer | template | texts | turns | thinking | native tools | system role | a turn ends with |
|---|---|---|---|---|---|---|---|
"""


def describe(case: Case) -> str:
    """Return the row of a case. Raises SystemExit where its tokenizer is not at hand."""
    tokenizer = _load(case.name)
    if isinstance(tokenizer, str):
        raise SystemExit(tokenizer)
    texts = all(
        tokenizer.decode(encode(tokenizer, text)).strip() == text.strip() for text in PROBES
    )
    prompt = prompt_ids(tokenizer, [ASKED], options={})
    turn = write_ids(tokenizer, prompt, write_turn(tokenizer, [ASKED], ANSWER, options={}))
    second = prompt_ids(tokenizer, [ASKED, Message("assistant", ANSWER, turn), AGAIN], options={})
    both = [*prompt.tolist(), *turn.tolist()]
    turns = second[: len(both)].tolist() == both
    form, tools = turn_form(tokenizer), tool_form(tokenizer)
    opened = tokenizer.decode(prompt).rstrip()
    thinking = "channels" if "<|channel|>" in str(tokenizer.chat_template) else "none"
    if opened.endswith("<think>"):
        thinking = "opened by the prompt"
    elif "<think>" in str(tokenizer.chat_template):
        thinking = "switched off" if opened.endswith("</think>") else "by the model"
    cells = [
        case.tokenizer,
        "its own" if case.template == OWN else case.template,
        "yes" if texts else "no",
        "yes" if turns else "no",
        thinking,
        "yes" if not tools.problem else "no: write `format: tags`",
        "yes" if form.has_system_role else "before the first user message",
        f"`{form.end}`",
    ]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def main() -> None:
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    table = HEAD + "\n".join(map(describe, CASES)) + "\n\n"
    PAGE.write_text(f"{before}{BEGIN}\n{table}{END}{after}")


if __name__ == "__main__":
    main()
