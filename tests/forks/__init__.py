"""The process that programs are forks of. It imports nothing that only tests need: each fork would have to copy it."""

LONGEST = 100_000
"""Characters of a request; what has longer arguments is started for itself."""
MOST = 5
"""Descriptors that a request comes with."""
