"""Tools of servers that implement the Model Context Protocol. The library ``mcp`` is imported only when needed."""
