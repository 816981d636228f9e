"""Accuracy on episodes: cached embeddings, thousands of episodes a second, intervals."""
