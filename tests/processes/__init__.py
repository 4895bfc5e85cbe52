"""Tests that start and end whole servers, a target of their own: `make test-served`."""
