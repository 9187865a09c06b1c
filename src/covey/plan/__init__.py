"""What a run will do, computed before anything is loaded: numbers only, no torch."""
