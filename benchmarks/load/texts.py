"""Text that is made up from common words: about one token a word, and the same for the same chance."""

import random

__all__ = ["plain_text"]

_WORDS = """
time year people way day man thing woman life child world school state family student group country problem
hand part place case week company system program question work government number night point home water room
mother area money story fact month lot right study book eye job word business issue side kind head house
service friend father power hour game line end member law car city community name president team minute idea
body information back parent face others level office door health person art war history party result change
morning reason research girl guy moment air teacher force education
""".split()


def plain_text(rng: random.Random, num_words: int) -> str:
    """Sentences of twelve words."""
    words = []
    for place in range(num_words):
        word = rng.choice(_WORDS)
        words.append(word.capitalize() if place % 12 == 0 else word + ("." if place % 12 == 11 else ""))
    return " ".join(words)
