"""`python -m cbnb runs`: the runs of a lab book in a terminal."""

from .lab.command import main

if __name__ == '__main__': main()
