"""The page on which a person plays an episode: gestures become actions on the run's topics."""
