"""Fixed texts, phrases for events, sanitizing of untrusted text, and searches in bounded time."""
