"""distbench report: records as a page, a table or a screen."""
