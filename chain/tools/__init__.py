"""Tools: the interface, the registry of an agent, and the tools that are shipped."""
