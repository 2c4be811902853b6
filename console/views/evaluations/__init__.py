"""Pages of what devices found about versions."""
