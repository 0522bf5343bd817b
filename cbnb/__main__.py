"""`python -m cbnb runs list`: the lab book in a terminal, see nbs/lab/command.ipynb"""

from .lab.command import main

main()
