"""python -m sluice: the command, where its folder is not in the path."""

from ._command import main

main()
