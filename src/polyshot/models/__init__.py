"""The networks, pure PyTorch: base, modulators, selector and prototype heads."""
