"""The operations compiled for the CPU with Numba, each in the file of the operation that it stands for."""
