"""A session: its journal, its runs, and the events that it tells."""
