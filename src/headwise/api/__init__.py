"""What can be asked of a model: score, find roles, prune, evaluate. Functions on models and texts, without a plan."""
