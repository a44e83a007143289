"""The command line: what each command prints, and its exit code."""
