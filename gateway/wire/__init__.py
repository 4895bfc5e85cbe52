"""The OpenAI protocol as types: what clients send, what they get, and what is refused by name."""
