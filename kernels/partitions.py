"""Where attention cuts contexts, and which sequences have a piece in common.

A context is cut into partitions of PARTITION_TOKENS, counted from position 0, and the sums over each are
joined as online softmax does (Milakov and Gimelshein, 2018). Sequences often hold the very same blocks: a
system prompt, the forks of one request. What several of them hold in one partition is read once, for all of
them together; they are found by their leader, which is one of them.

Owns the cut and the leaders, which say nothing about results: only about what may be read together.
"""

import numpy as np
import numpy.typing as npt

__all__ = ["PARTITION_TOKENS", "find_leaders"]

PARTITION_TOKENS = 256


def find_leaders(
    block_tables: npt.NDArray[np.int32],  # [num_sequences, max_blocks]
    max_context: int,  # tokens of the longest context
    block_size: int,
) -> npt.NDArray[np.int32]:  # [num_sequences, num_partitions]
    """For each sequence and partition a sequence that holds it in the very same blocks.

    All that have one leader hold the same, and it leads itself. Past a sequence's last whole partition its
    row may say anything. There are no columns if nobody has company, or blocks do not fill partitions.

    A block has one place in the cache's tree, so who shares a partition's last block shares the others too;
    if not, having computed one beside the tree, a sequence leads itself.
    """
    num_sequences, size = len(block_tables), PARTITION_TOKENS // block_size
    own = np.arange(num_sequences, dtype=np.int32)[:, None]
    num_partitions = max_context // PARTITION_TOKENS
    if num_sequences == 1 or num_partitions == 0 or PARTITION_TOKENS % block_size:
        return own[:, :0]
    blocks = block_tables[:, : num_partitions * size].reshape(num_sequences, num_partitions, size)
    keys = blocks[:, :, -1] + (np.arange(num_partitions) << 32)
    _, firsts, groups = np.unique(keys, return_index=True, return_inverse=True)
    places = firsts[groups.reshape(keys.shape)]  # of the first sequence with that last block
    is_same = (blocks.reshape(-1, size)[places] == blocks).all(axis=2)
    leaders: npt.NDArray[np.int32] = np.where(is_same, places // num_partitions, own)
    return leaders.astype(np.int32)
