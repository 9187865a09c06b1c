"""The one exception for wrong input: the command line prints its message and exits with code 2."""


class UserError(Exception):
    """Something the user gave is wrong; the message names the flag, file, row or value and says what to do."""
