"""What every room needs, one of each: files, locks, tensors, random numbers, device, progress."""
