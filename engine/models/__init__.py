"""Models: what a checkpoint says about itself, and the decoder that runs it. Knows no file format's bytes
and no device."""
