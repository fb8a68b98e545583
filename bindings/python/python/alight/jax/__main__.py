"""`python -m alight.jax MODEL [PROMPT]`: an answer from the JAX engine."""

from ._run import main

if __name__ == "__main__":
    main()
