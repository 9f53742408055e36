"""What the user sees: events, text and the toolbar. Pure."""
