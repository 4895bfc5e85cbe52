"""Load for any OpenAI-compatible server: what is asked and when, a lean client, figures and reports."""
