"""What people read: tickets, results and the catalogue of parts, as text."""
