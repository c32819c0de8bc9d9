"""Runs a program, then bundles its files that match into one file of a known name.

For servers that give back only files whose names were known before: this script runs there in
the program's place, runs it, and bundles. `__program__walk.py` beside it is init.py.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys

JOB, WALK, BUNDLE = "__program__job.json", "__program__walk.py", "__program__bundle.json"


def main() -> None:
    sys.path.insert(0, os.getcwd())
    from __program__walk import is_text, matches, regular_files  # type: ignore[import-not-found]

    with open(JOB) as file:
        job = json.load(file)
    program = sys.executable if job["language"] == "python" else job["language"]
    code = subprocess.run([program, job["program"]]).returncode
    patterns = [[step for step in text.split("/") if step != "."] for text in job["fetch"]]
    bundle: dict[str, str] = {}
    room = job["num_bytes"]
    for path in regular_files():
        is_fetched = is_text(path) and any(
            matches(path.split("/"), pattern) for pattern in patterns
        )
        if is_fetched and len(bundle) < job["num_files"] and os.path.getsize(path) <= room:
            room -= os.path.getsize(path)
            with open(path, "rb") as content:
                bundle[path] = base64.b64encode(content.read()).decode()
    with open(BUNDLE, "w") as out:
        json.dump(bundle, out)
    sys.exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    main()
