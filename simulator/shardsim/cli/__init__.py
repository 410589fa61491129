"""The command line: thin. Each command parses, calls the rooms below, and hands the result to ``report``.

Nothing heavy is imported before a command runs. Add a command by a line in ``cli/main.py`` and a module beside it.
"""
