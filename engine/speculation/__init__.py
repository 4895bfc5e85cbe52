"""Tokens proposed ahead, which the model verifies in one pass: who proposes, and how many are worth it."""
