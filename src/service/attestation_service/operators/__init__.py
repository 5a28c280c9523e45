"""What every act of an operator has: it is done once, and several may have to agree."""
