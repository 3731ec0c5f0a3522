"""Commands around Levanter: train there, bring a model back, take one there."""
