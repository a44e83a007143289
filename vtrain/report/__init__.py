"""Showing a report: as text for people, as JSON for programs.  Reads wire types alone."""
