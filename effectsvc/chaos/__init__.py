"""`effectsvc chaos`: a seeded storm over real processes, and the checker that judges it by the provider's ledger."""
