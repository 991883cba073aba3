"""`python -m gemkit`: the program, where its own name is not on the path."""

from gemkit.cli import main

if __name__ == "__main__":
    main(prog_name="gemkit")
