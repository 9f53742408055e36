"""A session: its runs and its events."""
