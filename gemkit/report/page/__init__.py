"""The page of a report: one HTML file that loads nothing, with its template, style and script."""
