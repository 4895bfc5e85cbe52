"""Small vocabularies that tests make for themselves, and the pipelines that they are held against."""

import json
from typing import Any

from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

from gateway.conversation.byte_alphabet import ALPHABET
from gateway.conversation.split_patterns import GPT2, LLAMA3, QWEN2, SMOLLM
from gateway.conversation.vocabulary import Vocabulary

CORPUS = (
    "the other day the weather was there, and then they gathered hello world hello there 123 1234 2024",
    "I'm sure it's what we've said: they'll come, don't they? He'd know. THE END'S NEAR   and   more\n\n\n",
    "Größe naïve café 日本語の文章 世界 мир   x = y;\n\tz == 'w'\r\n 🍕🍕 ...!!! (())",
)
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|im", "<think>", "</think>")
CONTROL_IDS = frozenset(range(4))
ABSENT_BYTES = (0x04, 0x06, 0xC0, 0xF1)

# characters at which patterns disagree: digits of several scripts, blanks, marks, letters that fold oddly
ODD = " \n\t\r1٣²Ⅻaésſ'中。!\u0301\u00a0\u3000\u200b\u2028\x85\x1cǅᾳİ🍕\u0600_"
texts = st.lists(
    st.sampled_from([*ODD, "'ll", "'RE", "hello", " the", "  ", "<|im_end|>", "12"]) | st.text()
).map("".join)

_alphabet = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
_words = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
PRE_TOKENIZERS: dict[str, Any] = {
    GPT2: _words,
    SMOLLM: pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _words]),
    LLAMA3: pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(LLAMA3), "isolated"), _alphabet]),
    QWEN2: pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(QWEN2), "isolated"), _alphabet]),
}


def trained_vocabulary(pattern: str, *, absent: tuple[int, ...] = ()) -> Vocabulary:
    """A few hundred merges learnt from the corpus; ids 0 to 5 are special, 0 to 3 of them control tokens."""
    alphabet = [letter for byte, letter in enumerate(ALPHABET) if byte not in absent]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = PRE_TOKENIZERS[pattern]
    trainer = trainers.BpeTrainer(
        vocab_size=600, initial_alphabet=alphabet, special_tokens=list(SPECIAL), show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    ids = tokenizer.get_vocab()
    return Vocabulary(
        tokens=sorted(ids, key=lambda token: ids[token]),
        merges=[(left, right) for left, right in json.loads(tokenizer.to_str())["model"]["merges"]],
        special={spelling: ids[spelling] for spelling in SPECIAL},
        control_ids=CONTROL_IDS,
        pattern=pattern,
    )


def reference(vocabulary: Vocabulary) -> Any:
    """The same vocabulary on the `tokenizers` library, special tokens left out."""
    ids = {token: token_id for token_id, token in enumerate(vocabulary.tokens) if token}
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=list(vocabulary.merges)))
    tokenizer.pre_tokenizer = PRE_TOKENIZERS[vocabulary.pattern]
    return tokenizer


def lacks_bytes(text: str, absent: tuple[int, ...]) -> bool:
    """Whether the text has bytes that are absent from the vocabulary."""
    return not set(text.encode()).isdisjoint(absent)
