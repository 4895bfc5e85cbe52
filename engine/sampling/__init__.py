"""From logits to tokens: penalties, filters, draws, log-probabilities; vectorized over a step's rows."""
