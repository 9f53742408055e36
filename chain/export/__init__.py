"""A session as a document for people or programs: Markdown, JSON, or one HTML page."""
