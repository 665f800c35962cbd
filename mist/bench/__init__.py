"""What `mist bench` measures: one module for each kind of figure."""
