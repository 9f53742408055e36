"""``preview_rows`` for scripts outside of the project that show old defects."""

from cli.show.question_rows import preview_rows  # noqa: F401
