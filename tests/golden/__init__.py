"""What the code computed before a refactor, recorded: answers, weights, rows, and old files."""
