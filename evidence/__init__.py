"""The evidence for what Alight claims: comparisons with other programs, measurements, checks by another hand.

`python -m evidence list` names every command; `python -m evidence GROUP NAME --help` explains one. Run it from the root
of the repository. What a command needs beyond Python's standard library, it imports itself, so that the list works on
any Python from 3.11 on.
"""
