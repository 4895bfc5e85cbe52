"""Finding the disk's tree again from what its blocks say of themselves.

Records come in any order, from any moment of the past: blocks whose parent is gone, or that repeat what
another holds, are left out, and their places are free again.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from prefix_cache.hashing import block_name, root_name
from prefix_cache.node import Namespace, Node
from prefix_cache.plan import BlockId, BlockRecord
from prefix_cache.tokens import TOKEN_BYTES
from prefix_cache.tree import PrefixCache

__all__ = ["path_records", "restore_tree"]


def restore_tree(
    tree: PrefixCache, records: Mapping[BlockId, BlockRecord], fingerprint: bytes, now: float
) -> list[BlockId]:
    """Hang every block that can be reached from the root into an empty tree; returns the others."""
    children: dict[bytes, dict[bytes, BlockId]] = defaultdict(dict)  # parent's name -> own name -> block
    for block, record in records.items():
        is_true = block_name(record.parent, record.namespace, record.tokens) == record.name
        if is_true and 0 < len(record.tokens) <= tree.block_size * TOKEN_BYTES:
            children[record.parent].setdefault(record.name, block)
    placed: set[BlockId] = set()
    pending: list[tuple[Node | None, list[BlockId]]] = [
        (None, _without_prefixes(records, children[root_name(fingerprint)].values()))
    ]
    while pending:
        parent, blocks = pending.pop()
        for block in blocks:
            run = [block]
            below = _below(tree, records, children, block)
            while len(below) == 1 and records[below[0]].namespace == records[block].namespace:
                run.append(below[0])
                below = _below(tree, records, children, below[0])
            tokens = b"".join([records[each].tokens for each in run])
            node = tree.restore(parent, records[block].namespace, tokens, run, now)
            placed.update(run)
            if below:
                pending.append((node, below))
    tree.ledger.take(placed)
    return [block for block in records if block not in placed]


def path_records(
    namespaces: Sequence[Namespace], first_block: int, tokens: bytes, block_size: int, fingerprint: bytes
) -> tuple[BlockRecord, ...]:
    """What the blocks of the disk's path say of themselves, from the given one to the last of `tokens`.

    `namespaces` has one for each block of that path, as it lies or will lie on the disk: the same tokens may
    lie under other namespaces elsewhere, and have other names there.
    """
    name = root_name(fingerprint)
    records = []
    block_bytes = block_size * TOKEN_BYTES
    for place in range(-(-len(tokens) // block_bytes)):
        held = tokens[place * block_bytes : (place + 1) * block_bytes]
        parent, name = name, block_name(name, namespaces[place], held)
        if place >= first_block:
            records.append(BlockRecord(namespaces[place], parent, name, held))
    return tuple(records)


def _below(
    tree: PrefixCache,
    records: Mapping[BlockId, BlockRecord],
    children: Mapping[bytes, Mapping[bytes, BlockId]],
    block: BlockId,
) -> list[BlockId]:
    record = records[block]
    if len(record.tokens) < tree.block_size * TOKEN_BYTES:
        return []  # nothing hangs below a partial block
    return _without_prefixes(records, children.get(record.name, {}).values())


def _without_prefixes(records: Mapping[BlockId, BlockRecord], blocks: Iterable[BlockId]) -> list[BlockId]:
    """Siblings that no other sibling repeats and extends."""
    kept: list[BlockId] = []
    for block in sorted(blocks, key=lambda each: (records[each].namespace, records[each].tokens)):
        record = records[block]
        before = records[kept[-1]] if kept else None
        if (
            before is not None
            and before.namespace == record.namespace
            and record.tokens.startswith(before.tokens)
        ):
            kept.pop()
        kept.append(block)
    return kept
