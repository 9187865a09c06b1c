"""What steers a run from step to step. Plain Python: no torch, no models; what holds state is in every checkpoint."""
