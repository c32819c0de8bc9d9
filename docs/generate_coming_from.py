"""The importer's tables in, docs/coming-from.md out: `python docs/generate_coming_from.py`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from coming_from_names import DRMAS, MARTI, MARTI_V1, MRLM, OTHERS, Names

from rolecall.importers.keys import Framework, Key
from rolecall.importers.translating import FRAMEWORKS

HEAD = """# Coming from elsewhere

Generated from the importer's own tables by `python docs/generate_coming_from.py`; do not edit.

`rolecall import FILE... [KEY=VALUE]... [--from NAME] [--output FILE.yaml]` makes a config of ours
out of a YAML of MRLM, a run script of Dr. MAS or MARTI, or a plain config of verl or TRL, which
becomes a team of one agent. It also reads `key=value` lines, a command in a Markdown page, and what
a file for Hydra names. NAME is mrlm, drmas, marti, marti_v1 (the first version of MARTI, with its
coaching fork MAPPA), verl or trl; by default the files say it themselves. A script is read and
never run; its own arguments may stand behind it: `rolecall import run_math.sh eval`. A KEY is one
of theirs, as in `default_agent.pretrain=MODEL`, or of ours.

Each key becomes one of ours, is said not to change what is learned, is reported as a difference, or
is refused because there is no such thing here. None is dropped in silence, and a key that they do
not have is an error that names its line. Where a key is refused nothing is written, unless
`--partial` asks for the rest. What only you can know is left as `???`.

What a file gives a single agent, in `agent_specific_parameters` of Dr. MAS or in `agents` of MARTI,
is that agent's here, too: its sampling, its algorithm, or the optimizer of its policy. A team that
nobody trains, because all of it speaks through APIs, is played with `rolecall eval FILE`.

Their defaults come along where they differ from ours. Prompts of theirs are not: Dr. MAS's teams
get the system prompts of our recipes; of MARTI's templates the words stay, and the workflow says
what their variables stand for.
"""


def page() -> str:
    """The whole document."""
    names = {"mrlm": MRLM, "drmas": DRMAS, "marti": MARTI, "marti_v1": MARTI_V1}
    names |= {"verl": OTHERS["verl"], "trl": OTHERS["TRL"]}
    parts = [HEAD]
    for name, framework in FRAMEWORKS.items():
        parts += [f"\n## {framework.title}\n", *_names(names[name]), *_differs(framework)]
        parts += _keys(framework)
    titles = {framework.title for framework in FRAMEWORKS.values()}
    for title, listed in OTHERS.items():
        if title in titles:
            continue
        parts += [f"\n## {title}\n", *_names(listed)]
    return "\n".join(parts)


def _names(names: Names) -> list[str]:
    lines = ["| there | here | remark |", "|---|---|---|"]
    for theirs, ours, remark in names:
        said = ", ".join(f"`{one}`" for one in ours) or remark
        lines.append(f"| {theirs} | {said} | {remark if ours else ''} |")
    return lines


def _differs(framework: Framework) -> list[str]:
    if not framework.differs:
        return []
    return [f"\n### What differs from {framework.title} beside its keys\n",
            *(f"- {what}" for what in framework.differs)]  # fmt: skip


def _keys(framework: Framework) -> list[str]:
    lines = [
        f"\n### Keys of {framework.title}\n",
        "| key | their default | here |",
        "|---|---|---|",
    ]
    for name, key in framework.keys.items():
        default = "" if key.default is None else f"`{key.default}`"
        lines.append(f"| `{name}` | {default} | {_here(key)} |")
    return lines


def _here(key: Key) -> str:
    because = key.because.replace("|", "\\|")
    if key.ours:
        return f"`{key.ours}`" + (f", but {because}" if because else "")
    if key.harmless is None:
        return f"not needed: {because}"
    kept = ", ".join(f"`{value}`" for value in key.harmless if value is not None)
    return f"{key.fate}: {because}" + (f" (nothing is lost with {kept})" if kept else "")


if __name__ == "__main__":
    Path(__file__).with_name("coming-from.md").write_text(page() + "\n")
