"""The shop of `milepost demo`: its messages, its subscribers and its screen."""
