"""`python -m neuralsde.cli`."""

from neuralsde.cli import main

main()
