"""Long stories with kills, one program each; `make endurance` runs them."""
