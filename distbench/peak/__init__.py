"""experiment=peak: which shape multiplies fastest, per dtype, within a time budget, and how far others fall below it."""
