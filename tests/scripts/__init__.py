"""Tests of the programs that are run from a checkout."""
