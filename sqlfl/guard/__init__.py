"""What a party checks of what it is asked: by the policies and grants that its owner has made."""
