"""What is sent and received: the shapes of bodies and answers that no value of the library has already."""
