"""What is hashed, signed or sent: frozen dataclasses and their one canonical encoding."""
