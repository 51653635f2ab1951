"""`python -m effectsvc.cli`: the same as the `effectsvc` command."""

from effectsvc.cli.entry import main

main()
