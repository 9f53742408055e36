"""The tool ``research``: its plan, its visits and the report of its results."""
