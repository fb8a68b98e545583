"""`python -m alight.jax.bench WHAT`."""

from ._main import main

if __name__ == "__main__":
    main()
