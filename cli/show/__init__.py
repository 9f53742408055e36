"""What the user sees: events, text and the status row. Pure."""
