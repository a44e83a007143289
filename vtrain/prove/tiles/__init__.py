"""A step as many statements about tiles: what they are, who proves them, and how they are drawn."""
