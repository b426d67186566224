"""A trained image classifier, ready for use."""
