"""A thread for native code that recurses as deep as its input nests: a stack that ends ends the process."""

import threading
from concurrent.futures import ThreadPoolExecutor

__all__ = ["deep_thread"]

# Of addresses, which cost no memory until they are used. A chain of 3,000 rules needs more than 8 MiB.
_STACK_BYTES = 1 << 29


def deep_thread(name: str) -> ThreadPoolExecutor:
    """An executor of one thread. To be called while nobody else begins threads."""
    executor = ThreadPoolExecutor(1, name)
    usual = threading.stack_size(_STACK_BYTES)
    try:
        executor.submit(int).result()  # begins the thread
    finally:
        threading.stack_size(usual)
    return executor
