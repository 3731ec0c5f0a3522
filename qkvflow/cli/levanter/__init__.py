"""Commands around Levanter: train with it, convert checkpoints in both directions."""
