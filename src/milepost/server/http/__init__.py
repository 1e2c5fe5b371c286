"""The API over HTTP: thin handlers over the methods of `Milepost`."""
