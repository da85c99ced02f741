"""experiment=health: which ranks, links and products are bad, and why."""
