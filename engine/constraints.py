"""Which tokens an answer that must follow a grammar may go on with, found beside the model's run.

A grammar is Lark's with llguidance's additions, and its matcher follows an answer token by token. Matchers
are brought up to date and asked on a thread of their own, which holds no lock of Python's while it works, so
a step waits for them only where the model was faster.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cached_property
from threading import Lock
from weakref import WeakKeyDictionary

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask

from engine.deep_threads import deep_thread
from engine.sampling.allowed import Allowed
from engine.sampling.rows import Row
from engine.sequence import Sequence as TokenSequence
from engine.vocabulary import Vocabulary

__all__ = ["LIMITS", "Constraints"]

# What a grammar may cost. An ambiguous one costs the square of its items: with these 30 ms a
# token, with the library's own 0.2 s.
LIMITS = LLParserLimits(
    max_items_in_row=1_000,
    initial_lexer_fuel=1_000_000,
    step_lexer_fuel=150_000,
    step_max_items=50_000,
    max_lexer_states=100_000,
    max_grammar_size=200_000,
    verbose_errors=False,
)
_MAX_KEPT = 64  # compiled grammars
# Where only one text can follow, the model still chooses its tokens: those that it was trained on.
_FREE = '%llguidance {"no_forcing": true}\n'


@dataclass(slots=True)
class _Progress:
    """How far a matcher has followed its answer."""

    matcher: LLMatcher
    num_consumed: int = 0


class Constraints:
    """The matchers of all sequences that have a grammar. Implements Grammars.

    The vocabulary is read when the first grammar comes.
    """

    def __init__(self, load_vocabulary: Callable[[], Vocabulary], vocab_size: int) -> None:
        """`vocab_size` is the model's, which may have more rows than there are tokens."""
        self._load_vocabulary = load_vocabulary
        self._vocab_size = vocab_size
        self._thread = deep_thread("grammars")
        self._compiler = deep_thread("compiler")
        self._lock = Lock()
        self._compiled: OrderedDict[str, LLMatcher] = OrderedDict()
        self._progress: WeakKeyDictionary[TokenSequence, _Progress] = WeakKeyDictionary()

    def prepare(self, grammar: str) -> "Future[None]":
        """See Grammars. What is compiled already waits for nothing."""
        with self._lock:
            known = self._compiled.get(grammar)
        if known is None:
            return self._compiler.submit(lambda: _check(self._compile(grammar)))
        done: Future[None] = Future()
        if known.is_error():
            done.set_exception(ValueError(_words(known)))
        else:
            done.set_result(None)
        return done

    def begin(self, rows: Sequence[Row]) -> "Future[Allowed] | None":
        """See Grammars."""
        held = [place for place, row in enumerate(rows) if row.sampling.grammar is not None]
        return self._thread.submit(self._find, rows, held) if held else None

    def close(self) -> None:
        """See Grammars."""
        self._thread.shutdown()
        self._compiler.shutdown()

    @cached_property
    def _tokenizer(self) -> LLTokenizer:
        vocabulary = self._load_vocabulary()
        return LLTokenizer(
            TokenizerWrapper(_Tokens(vocabulary)),
            n_vocab=max(self._vocab_size, len(vocabulary.tokens)),
            eos_token=list(vocabulary.end_token_ids),
        )

    def _find(self, rows: Sequence[Row], held: list[int]) -> Allowed:
        bits = allocate_token_bitmask(len(held), self._tokenizer.vocab_size)
        failures: dict[TokenSequence, str] = {}
        for line, place in zip(bits, held, strict=True):
            row = rows[place]
            matcher = self._follow(row.sequence)
            if row.proposed:
                # Taking tokens back is served only where nothing counts them. After a proposal that may not
                # follow nothing is drawn, so it does not matter what may.
                matcher = matcher.deep_copy()
                matcher.try_consume_tokens(list(row.proposed))
            fill_next_token_bitmask(matcher, line[None])
            if matcher.is_error():
                failures[row.sequence] = _words(matcher)
        return Allowed(held, bits, failures)

    def _follow(self, sequence: TokenSequence) -> LLMatcher:
        """The sequence's matcher, with all that was drawn behind it."""
        progress = self._progress.get(sequence)
        if progress is None:
            grammar = sequence.sampling.grammar
            assert grammar is not None, "only a sequence with a grammar is followed"
            progress = self._progress[sequence] = _Progress(self._compile(grammar).deep_copy())
        news = sequence.tokens[sequence.num_prompt_tokens + progress.num_consumed :]
        progress.matcher.consume_tokens(news.tolist())
        progress.num_consumed += len(news)
        return progress.matcher

    def _compile(self, grammar: str) -> LLMatcher:
        with self._lock:
            matcher = self._compiled.get(grammar)
            if matcher is not None:
                self._compiled.move_to_end(grammar)
                return matcher
        matcher = LLMatcher(self._tokenizer, _FREE + grammar, log_level=0, limits=LIMITS)
        # One that no answer satisfies, or whose beginning costs too much, is found out by its first mask.
        fill_next_token_bitmask(matcher, allocate_token_bitmask(1, self._tokenizer.vocab_size))
        with self._lock:
            self._compiled[grammar] = matcher
            while len(self._compiled) > _MAX_KEPT:
                self._compiled.popitem(last=False)
        return matcher


def _check(matcher: LLMatcher) -> None:
    if matcher.is_error():
        raise ValueError(_words(matcher))


def _words(matcher: LLMatcher) -> str:
    """What is wrong, in one line of the library's."""
    words: str = matcher.get_error().removesuffix("<non-verbose/>").strip()
    if not words or words.startswith("NoExtension"):
        words = "no answer satisfies it"
    return f"the grammar cannot be followed: {words.splitlines()[0]}"


class _Tokens:
    """A vocabulary as the library reads one: a control token is its name behind a byte that no text has."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        names = vocabulary.control_names
        self.tokens = [
            b"\xff" + names[token_id].encode() if token_id in names else data
            for token_id, data in enumerate(vocabulary.tokens)
        ]
        self.special_token_ids = sorted(names)
        self.eos_token_id = vocabulary.end_token_ids[0]
        self.bos_token_id = None

    def __call__(self, _text: str | bytes) -> list[int]:
        """Text to ids, which only what is forced would need."""
        return []
