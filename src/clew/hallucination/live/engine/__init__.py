"""Generation of answers to many requests in one continuous batch, with their record."""
