"""The entry point of `rolecall` and of `python -m rolecall`."""

from __future__ import annotations

from rolecall.runtime import interrupts


def main() -> None:
    """Run the command line; Ctrl-C is handled before the imports that take a second."""
    interrupts.end_at_once()
    from rolecall.cli.main import main as run

    try:
        run()
    finally:
        interrupts.ignore_once()


if __name__ == "__main__":
    main()
