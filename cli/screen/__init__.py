"""The terminal: an editor below scrolling rows, or rows alone if the terminal has no editing keys."""
