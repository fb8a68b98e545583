"""Times the fused collective beside `lax.psum`, residual and norm: `alight bench collective`, with a Python that has the
package and jax (the wheel of `make python`).
"""

# The options are those of `alight bench collective`.
PASSES_ON = True


def add_arguments(parser) -> None:
    """None of its own."""


def run(args) -> None:
    from alight.jax.bench._main import main

    main(["collective", *args.rest], prog="python -m evidence bench collective")
