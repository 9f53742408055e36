"""The wiring: what a configuration, models, tools and a session make together."""
