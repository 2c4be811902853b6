"""What an agent keeps on its disk beside its windows."""
