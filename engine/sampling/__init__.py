"""From logits to tokens: penalties, filters, draws and log-probabilities, vectorized over the rows of a step."""
