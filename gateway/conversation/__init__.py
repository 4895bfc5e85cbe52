"""Messages to token ids and back: template, tokenizer, transcripts, detokenizer, stop strings. The entrance
is `prompt`.
"""
