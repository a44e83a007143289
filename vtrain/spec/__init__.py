"""The law, in plain numpy: number format, randomness and data order, the trees."""
