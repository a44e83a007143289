"""A whole step as one circuit."""
