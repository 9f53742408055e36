"""Where lines come from when nobody types them at a prompt."""
