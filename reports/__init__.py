"""The answer: comparison, charts, the HTML page, terminal and live views, tables for other programs."""
