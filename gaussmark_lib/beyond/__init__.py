"""More than the paper's method: what grew around the core, which imports none of it."""
