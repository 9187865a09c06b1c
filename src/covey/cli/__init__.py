"""The command line. Importing it, parsing and ``--help`` need neither torch nor transformers."""
