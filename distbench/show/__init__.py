"""What a person sees. Reads records and plans; measures nothing."""
