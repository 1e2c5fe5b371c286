"""How a request arrives, is checked and answered: what all resources of the API share."""
