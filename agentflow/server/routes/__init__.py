"""The operations of the API, by what they are about. Each module gives a table `OPERATIONS`."""
