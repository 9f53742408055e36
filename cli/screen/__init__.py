"""The terminal: the editor, and what there is where there can be none."""
