"""The memory of the house: which block holds which tokens, who holds it, and what goes next.

Standard library only; no I/O and no clock. It decides and answers with plain data; engine carries the plans
out.
"""
