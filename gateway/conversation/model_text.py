"""Everything about text that a model's files state: tokenizer, chat template, and which tokens end an answer.

It owns the choice of reader for a file or a folder. Invariant: what it returns names no file any more, and no
file stays open.
"""

from pathlib import Path

from gateway.conversation.folder_text import read_folder
from gateway.conversation.gguf_text import read_gguf
from gateway.conversation.text_model import TextModel

__all__ = ["load_model_text"]


def load_model_text(path: Path) -> TextModel:
    """Read a GGUF file, or a folder with a tokenizer.json. Raises ValueError (TokenizerUnsupported,
    GGUFError) or OSError.
    """
    return read_folder(path) if path.is_dir() else read_gguf(path)
