"""``clean`` for scripts outside of the project that show old defects."""

from chain.text.plain import sanitize as clean  # noqa: F401
