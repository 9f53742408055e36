"""Handler prompts: their files, their rules, and the messages that they make of the user's lines."""
