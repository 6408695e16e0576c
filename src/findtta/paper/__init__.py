"""The paper: what it printed, and what this package gets for the same."""
