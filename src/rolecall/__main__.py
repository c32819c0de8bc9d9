"""`python -m rolecall`."""

from rolecall.cli import main

main()
