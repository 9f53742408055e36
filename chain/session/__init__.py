"""A session: its journal, its runs and its events."""
