"""From a task to a run directory: data, training with resume, and delivering the model."""
