"""How much `make test` and `make fuzz` run of it; SECURITY.md says the same, as a test checks."""

CASES = 5  # hostile inputs of each kind
SERVICE_CASES = 2  # of those that start a server: each sends 20 requests
KILLS = 2  # per command: one at a moment, one at a change of a file
FUZZ_MINUTES, FUZZ_KILLS = 30, 100
