"""`python -m clew` is the same as `clew`."""

from clew.cli import main

if __name__ == "__main__":
    main()
