"""What spans cost: to make, to send, and to the runs beside which they are made."""
