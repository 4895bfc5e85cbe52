"""The GPU's kernels and path without a GPU, a target of their own: `make test-gpu-check`."""
