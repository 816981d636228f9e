"""Where the work on a grid is done: by processes of this machine."""
