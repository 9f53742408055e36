"""The wiring: these modules create a chain from a configuration, models, tools and a session."""
