"""The output for users: rows of events and texts, and the toolbar. Pure."""
