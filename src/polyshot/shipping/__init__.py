"""What comes with Polyshot: a pool that needs no training, and an example to try it on."""
