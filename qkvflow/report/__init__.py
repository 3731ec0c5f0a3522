"""What everyone draws on: pages, tables, figures."""
