"""The terminal: the editor, and rows alone where there can be no editor."""
