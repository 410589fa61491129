"""The command line: thin; parses, calls, hands results to report."""
