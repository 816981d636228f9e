"""A campaign that tries to break the program: `make hostile`. docs/reliability.md has its table.

Commands are killed and run again, everything that is read is damaged, disks are full or read-only,
memory is short. A trial ends with the right answer, or with one line and exit code 2, and nothing
is left behind. It is seeded: a trial is named by its part and its number.
"""
