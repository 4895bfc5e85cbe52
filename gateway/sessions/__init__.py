"""Stored conversations: whose turn it is, what a history is for the model, and what may be done to it."""
