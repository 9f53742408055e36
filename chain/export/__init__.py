"""Exports of a session: Markdown, JSON, or one HTML page."""
