"""Training in three steps, base, modulators and selector, all by one loop."""
