"""Agreement with other programs: tokens, answers, log-probabilities."""
