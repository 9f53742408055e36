"""The server of the Agent Client Protocol, through which editors run chains."""
