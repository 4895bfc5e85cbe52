"""Whether an answer follows a grammar, as an engine finds it."""

from array import array
from collections.abc import Sequence

from engine.constraints import Constraints
from engine.sampling.rows import Row
from engine.sequence import SamplingParams
from engine.sequence import Sequence as TokenSequence
from engine.vocabulary import Vocabulary

__all__ = ["follows"]


def follows(vocabulary: Vocabulary, grammar: str, ids: Sequence[int]) -> bool:
    """Whether an answer may be exactly these tokens."""
    sequence = TokenSequence(
        request_id="request",
        choice=0,
        tokens=array("i", ids),
        num_prompt_tokens=0,
        sampling=SamplingParams(max_tokens=1, grammar=grammar),
        namespace=b"",
    )
    constraints = Constraints(lambda: vocabulary, len(vocabulary.tokens))
    try:
        finding = constraints.begin([Row(sequence)])
        assert finding is not None
        allowed = finding.result()
    finally:
        constraints.close()
    end = vocabulary.end_token_ids[0]
    return not allowed.failures and bool(allowed.bits[0, end // 32] >> (end % 32) & 1)
