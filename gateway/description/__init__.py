"""What is served, as data: a table of operations, and the documents that are made of it."""
