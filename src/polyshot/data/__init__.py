"""From files to packs, class splits and episodes. Knows nothing of models."""
