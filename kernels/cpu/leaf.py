"""How functions are compiled that other compiled functions call, and that allocate nothing.

Owns one decorator. Numba counts the references to an array at each call that passes one, with instructions
that wait for all of memory before them: a few hundred cycles a call, and more where two cores count the same
array. A leaf's caller holds its arrays, so a leaf counts none.
"""

import numba

__all__ = ["leaf"]

# Without Numba's runtime, which allocates and counts; a division by zero is a number's business; and nobody
# calls a leaf from Python or C, which would take a sixth of the time to compile.
leaf = numba.njit(_nrt=False, error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)
