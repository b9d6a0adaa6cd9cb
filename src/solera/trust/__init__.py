"""What decides what leaves an owner: contributions, what stands behind them, what is withheld."""
