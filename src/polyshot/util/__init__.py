"""What every room needs, one of each: files, locks, tensors, random numbers, device, progress."""

__version__ = "0.1.0"
"""Of Polyshot."""
