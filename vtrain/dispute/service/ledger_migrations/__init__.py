"""Migrations of the service's database, applied in order whenever a service starts."""
