"""Handler prompts: how interruptions are put to the model."""
