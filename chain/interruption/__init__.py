"""Handler prompts: their files, their rules, and the messages that they compose from the user's lines."""
