"""The gateway with nothing beside it: an engine that computes nothing, and a client that parses nothing."""
