"""In front of your code: one module per framework, the same names in each."""
