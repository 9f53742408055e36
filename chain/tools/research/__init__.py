"""The tool ``research``: what it visits, in which order, and what of that it shows."""
