"""Many runs: the ledger of their results, and progress over all of them."""
