"""How a pool classifies: rules weigh its members, adaptation learns on the support set."""
