"""What a model writes beside content: calls of tools, and reasoning. Read as it grows, and demanded."""
