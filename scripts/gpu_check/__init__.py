"""Whether everything that runs on a GPU is right there, and how fast it is beside what the GPU can do."""
