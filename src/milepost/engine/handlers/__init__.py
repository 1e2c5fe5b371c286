"""Call the handlers of a program with the messages of its lanes."""
