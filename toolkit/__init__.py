"""spectool: one recipe from a checkpoint to a tuned, served speculative-decoding deployment."""

__version__ = "0.1.0"
