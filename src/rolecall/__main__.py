"""`python -m rolecall`."""

from rolecall.cli.main import main

main()
