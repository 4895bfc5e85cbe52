"""The history of the database's schema. Revisions are numbered in order."""
