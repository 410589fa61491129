"""Pure equations: seconds of an operator, Transfer of a collective. No files, no state; scalars and arrays alike."""
