"""Networks, and one folder per federated method. Files that need torch say so."""
