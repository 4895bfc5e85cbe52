"""Token ids in, token ids out: scheduling, the model and its paged memory. Knows no HTTP, no database, no
text.

Public modules: engine.client, engine.messages, engine.cache_messages, engine.sequence, engine.errors,
engine.gguf; and engine.local, for programs that run the engine in their own process.
"""
